"""Ranks that run one cell after another, as in a notebook: what their host needs.

Each rank calls `begin` once, and `begin_cell` and `end_cell` around each cell. After a cell that has failed,
all ranks call `renew`: the world's communicator goes on with a fresh context, and what was made from it ends
with an error. The host, which is no rank, reads from the ranks' `FlightRecorder` what they do
(`take_snapshot`).

Importing this module loads no MPI.
"""

# ruff: noqa: PLC0415 (imports inside functions: the host loads this module, and no MPI)

from __future__ import annotations

import sys
from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from mpiwatch.interrupts import without_interrupts
from mpiwatch.places import cell_number, describe, is_cell, one_line, own_folders, place_of
from mpiwatch.recorder import CellState, FlightRecorder
from mpiwatch.snapshot import take_snapshot

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "CellState",
    "FlightRecorder",
    "begin",
    "begin_cell",
    "begin_recording",
    "cell_number",
    "describe",
    "end_cell",
    "end_recording",
    "is_cell",
    "is_recording",
    "is_renewal_due",
    "leave_calls_that_hang",
    "leftovers",
    "one_line",
    "own_folders",
    "place_of",
    "recording_part",
    "renew",
    "take_snapshot",
    "without_interrupts",
]


def begin(world: MPI.Intracomm) -> None:
    """Prepare this rank to go on after failed cells. The first call is collective."""
    from mpiwatch.renewal import renewal

    renewal.prepare(world)


def begin_cell(watch: Any) -> None:
    """Note that a cell begins; `watch` is the world's `comm.watch`."""
    from mpiwatch.messages import open_requests
    from mpiwatch.under_way import traffic

    traffic.balance = 0
    traffic.open_before = Counter(open_requests())
    watch.begin_cell()
    recording = sys.modules.get("mpiwatch.trace_recorder")  # if a cell of this rank was ever recorded
    if recording is not None:
        recording.begin_cell()


def end_cell(watch: Any, error: BaseException | None) -> None:
    """Note that the cell has ended, with an error or well; in strict mode, print its findings."""
    from mpiwatch import messages, modes
    from mpiwatch.renewal import renewal
    from mpiwatch.under_way import traffic

    recording = sys.modules.get("mpiwatch.trace_recorder")
    if recording is not None:
        recording.end_cell(error)
    mode = modes.registered
    if mode is not None:  # it reports what is left as findings
        findings = mode.end_cell()
        if findings:
            print(findings)
    else:
        watch.slot.balance = traffic.balance
        traffic.left_open = messages.requests_of_cell()
        watch.slot.open_requests = len(traffic.left_open)
    renewal.is_due = renewal.is_due or error is not None
    state = CellState.RETURNED if error is None else CellState.RAISED
    watch.end_cell(state, describe(error) if error else "", type(error).__name__ if error else "")


def begin_recording(world: MPI.Intracomm) -> str:
    """Record the calls of this rank in its next cell, for `mpiwatch.trace`.

    If the ranks are on several machines, all of them call it: they compare their clocks.
    Return the path of the file with the recording, which can be read even if the rank is killed; if the file
    is still there then, the caller removes it. `world`: the watched communicator of the world.
    """
    from mpiwatch import trace_recorder

    return trace_recorder.begin_in_session(world)


def recording_part(name: str) -> AbstractContextManager[None]:
    """Let calls of this rank inside a `with` block belong to a part of its recording, if there is one.

    Such a part is what the program needs but has not done itself; `Trace.part` returns it by its name. The
    recording itself then begins with the end of the block.
    """
    from mpiwatch import trace_recorder

    return trace_recorder.part(name)


def is_recording() -> bool:
    """Return whether the calls of this rank are recorded."""
    recording = sys.modules.get("mpiwatch.trace_recorder")
    return recording is not None and recording.recorder is not None


def end_recording() -> bytes:
    """End the recording of this rank, remove its file, and return it, for `mpiwatch.trace.read`.

    Return nothing if there is none.
    """
    from mpiwatch import trace_recorder

    return trace_recorder.end_in_session()


def leftovers(watch: Any) -> tuple[Any, ...]:
    """Return what the last cell has left on this rank, as a tuple of plain data.

    The parts are `arrived`, the first waiting message from each rank; `sent`, this rank's last sends; and
    `requests`, of each request that has not completed the operation, the peer (a rank of the world, or -1),
    the line, and whether the program has dropped the request. A message is the communicator's row, the two
    ranks, the tag and the line of the send.
    """
    from mpiwatch import messages

    return tuple(messages.leftovers(watch))


def is_renewal_due() -> bool:
    """Return whether a cell has failed on any rank since the last renewal. Collective."""
    from mpiwatch.renewal import renewal

    return renewal.is_due_on_any_rank()


def renew(world: MPI.Intracomm, because: str) -> None:
    """Let `world` go on with a fresh context, and end what was made from it. Collective.

    `because`: what has happened, such as "cell [7] failed".
    """
    from mpiwatch.renewal import renewal

    renewal.renew(world, because)


def leave_calls_that_hang() -> None:
    """Let this rank go on after a report on a call that cannot be ended; `begin` comes first.

    Another thread makes those calls. As long as one of some kinds is under way, no rank can make another: all
    their ranks meet before they make one.
    """
    from mpiwatch import left_calls, rendezvous
    from mpiwatch.renewal import renewal

    left_calls.install()
    rendezvous.install(renewal.for_rendezvous)
