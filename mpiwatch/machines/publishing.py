"""Publish a report: the rank itself does so on one machine, the hub on several."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

from mpiwatch.flight_recorder import snapshot
from mpiwatch.flight_recorder.layout import FlightRecorder
from mpiwatch.machines.wishes import Wish, write_wish

POLL_S = 0.01


def publish(  # noqa: PLR0917
    recorder: FlightRecorder,
    rank: int,
    epoch: int,
    wish: Wish,
    progress: Callable[[], object],
    patience_s: float = float("inf"),
) -> None:
    """Publish a report in this epoch, unless another rank does so first.

    The hub answers late if rank 0 runs code that blocks other threads. Give up after `patience_s`.
    `progress` lets MPI move messages.
    """
    deadline = monotonic() + patience_s
    if recorder.head.hub:
        write_wish(recorder.slots[rank], epoch, wish)
    while recorder.head.hub and recorder.head.epoch == epoch and monotonic() < deadline:
        progress()
        sleep(POLL_S)
    if not recorder.head.hub:
        with recorder.locked():
            if recorder.head.epoch == epoch:
                recorder.publish(snapshot.take_snapshot(recorder, *wish))
