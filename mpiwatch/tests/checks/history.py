"""The flight recorder keeps a rank's last calls, even where it writes only the number of a call."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from mpiwatch.communicators import WatchedComm, watch
from mpiwatch.recorder import HISTORY_CALLS


def calls_of(world: WatchedComm) -> list[tuple[str, int, int]]:
    """Return the operation, count and number of the last calls, oldest first."""
    rank_watch = world.watch
    if rank_watch is None:
        pytest.skip("the ranks are not watched")
    calls = rank_watch.recorder.last_calls(world.rank)
    return [(call.operation.decode(), call.count, call.number) for call in calls]


def check_the_last_calls_are_kept_when_loops_change(comm: MPI.Intracomm) -> None:
    world = watch()
    for counts in (5,), (5, 7), (5, 7, 9), (7,):  # three kinds of calls do not divide 32 places evenly
        arrays = [np.zeros(count) for count in counts]
        expected = []
        for _ in range(HISTORY_CALLS + 1):
            for array in arrays:
                world.Allreduce(MPI.IN_PLACE, array)
                expected.append(("Allreduce", array.size))
        kept = calls_of(world)
        assert [call[:2] for call in kept] == expected[-HISTORY_CALLS:], counts
        first = kept[0][2]
        assert [number for _, _, number in kept] == list(range(first, first + HISTORY_CALLS)), counts
