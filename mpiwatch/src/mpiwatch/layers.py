"""What a library of communicators or of communication algorithms on top of mpiwatch needs. It loads MPI.

- Communicators: derive a class from `CommWrapper` (see there); `add_methods` gives it methods with the
  parameters of mpi4py's own. `caller` and `here` name the program's line.
- Arguments: `nbytes`, `flat`, `is_in_place` and `check_writable` read the buffers that mpi4py's methods take.
- Errors: `raise_together` and `raise_faults` raise one `CollectiveError` on all ranks.
- Waiting: `wait_for_pending` for messages of an algorithm, `wait_for` for requests, `sleeping_barrier`. Each
  ends with a hang report, and is a wait in a recording; `note_wait` lets another wait be one. `attempt`
  numbers what goes on after a report; `yield_core` lets other ranks run.
- The watched world: `watch` returns it, and leaves `MPI.COMM_WORLD` as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpiwatch import modes, requests
from mpiwatch.arguments import check_writable, flat, is_in_place, nbytes
from mpiwatch.collectives import Channel, caller
from mpiwatch.communicators import WatchedComm, watch
from mpiwatch.forwarding import add_methods
from mpiwatch.message_waits import (
    SPIN_IN_SCHEDULE_S,
    Pending,
    note_wait,
    sleeping_barrier,
    wait_for,
    wait_for_pending,
)
from mpiwatch.places import here
from mpiwatch.waiting import (
    CollectiveError,
    Over,
    attempt,
    raise_faults,
    raise_together,
    world_ranks,
    yield_core,
)
from mpiwatch.wrapper import CommWrapper

__all__ = [
    "SPIN_IN_SCHEDULE_S",
    "CollectiveError",
    "CommWrapper",
    "Over",
    "Pending",
    "add_methods",
    "attempt",
    "caller",
    "check_writable",
    "flat",
    "has_mode",
    "here",
    "is_in_place",
    "nbytes",
    "note_starts",
    "note_wait",
    "raise_faults",
    "raise_together",
    "sleeping_barrier",
    "wait_for",
    "wait_for_pending",
    "watch",
    "without_rendezvous",
    "world_ranks",
    "yield_core",
]


def has_mode() -> bool:
    """Return whether this process is in a mode, such as strict mode, whose requests do without MPI's."""
    return modes.registered is not None


def note_starts(note: Callable[[Any], object]) -> None:
    """Call `note(request)` whenever a persistent request starts."""
    requests.on_start = note


def without_rendezvous(comm: WatchedComm) -> WatchedComm:
    """Return a duplicate whose ranks compare their collectives but do not wait for each other. Collective.

    It is as a communicator of a program that `mpiwatch` runs.
    """
    new: WatchedComm = comm.Dup()
    channel = new._channel
    if isinstance(channel, Channel):
        row, first, number = channel.row, channel.first, channel.number
        new._channel = Channel(channel.watch, row, first, number, new, channel.members, waits=False)
    return new
