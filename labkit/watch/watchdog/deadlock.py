"""Whether the ranks are in a deadlock: a pure decision over what each rank has noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.watch.flight_recorder.snapshot import FRESH_S

SLOW_DEADLINES = 3  # for ranks that are all in the same call: it may only be slow


class Sample(NamedTuple):
    """What is known of a rank. Times are in seconds, on the clock that all processes share."""

    is_finished: bool  # its cell or program has returned or raised, or its process has ended
    stuck_since_s: float = 0.0  # inside one call of MPI, or waiting in a watched call; 0 if it is not
    sampled_s: float = 0.0  # when its watchdog has last looked
    mpi_call: str = ""  # empty if it waits in a watched call, which ends by itself
    place: str = ""


def is_deadlock(ranks: Sequence[Sample], now_s: float, deadline_s: float) -> bool:
    """Tell whether no unfinished rank can go on: all have been stuck for `deadline_s`, and one is inside MPI.

    If all ranks are in the same call at the same line, it takes three times as long.
    """
    unfinished = [rank for rank in ranks if not rank.is_finished]
    if not any(rank.mpi_call for rank in unfinished):
        return False
    in_same_call = len(unfinished) == len(ranks) and len({(rank.mpi_call, rank.place) for rank in ranks}) == 1
    least_s = deadline_s * (SLOW_DEADLINES if in_same_call else 1)
    return all(
        rank.stuck_since_s and now_s - rank.stuck_since_s > least_s and now_s - rank.sampled_s < FRESH_S
        for rank in unfinished
    )
