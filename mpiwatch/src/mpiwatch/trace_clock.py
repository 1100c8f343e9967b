"""Compare the clocks of the machines on which ranks are recorded."""

from __future__ import annotations

from time import monotonic
from typing import Any

from mpiwatch.library_calls import RawIntracomm

# To compare the clocks of two machines: at least so many, and more until one has been quick.
ROUND_TRIPS, MOST_ROUND_TRIPS = 20, 300
QUICK_S = 20e-6  # half of a round trip


def machines_of(world: Any) -> list[int]:
    """Return the number of each rank's machine."""
    watch = world.watch
    return watch.machines if watch is not None else [0] * world.size


def clock_offset(world: Any) -> tuple[float, float]:
    """Return what to add to this rank's clock to get that of rank 0, and how far that may be wrong.

    Collective. Processes of one machine share a clock. The first rank of each other machine asks rank 0 for
    the time; the answer that comes back soonest is the best one, and is wrong by half of its round trip at
    most. On one machine, no rank waits for another.
    """
    machines = machines_of(world)
    firsts = [machines.index(machine) for machine in dict.fromkeys(machines)]
    if len(firsts) == 1:
        return 0.0, 0.0
    channel = RawIntracomm(world).Dup()
    best = 0.0, 0.0
    for first in firsts[1:]:
        if world.rank == 0:
            while channel.recv(source=first):
                channel.send(monotonic(), dest=first)
        elif world.rank == first:
            best = _best_round_trip(channel)
            channel.send(False, dest=0)
    offsets = channel.allgather(best)
    channel.Free()
    return offsets[machines.index(machines[world.rank])]


def _best_round_trip(channel: Any) -> tuple[float, float]:
    """Ask rank 0 for the time until an answer comes quickly; return what the quickest one says."""
    best = _round_trip(channel)
    for number in range(1, MOST_ROUND_TRIPS):
        if number >= ROUND_TRIPS and best[1] < QUICK_S:
            break
        best = min(best, _round_trip(channel), key=lambda trip: trip[1])
    return best


def _round_trip(channel: Any) -> tuple[float, float]:
    """Ask rank 0 for the time; return its clock minus this one, and half of the time that it took."""
    asked_s = monotonic()
    channel.send(True, dest=0)
    theirs_s = channel.recv(source=0)
    half_s = (monotonic() - asked_s) / 2
    return theirs_s - (asked_s + half_s), half_s
