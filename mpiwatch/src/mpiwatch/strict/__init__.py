"""Strict mode: errors that show only with other sizes, on other machines, or after hours.

`begin` puts `mpi4py.MPI` into strict mode; `end_cell`, `end_function` and `end_program` list the findings.

Its communicator is a watched one above another way for messages to travel (see `Exchange`): sends wait for
their receives, and the ranks compare their operations.

`StrictMode` says what it adds to watched calls; `register_mode` is the only place at which it hooks in.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch import modes
from mpiwatch.communicators import WatchedComm, register_mode
from mpiwatch.recorder import CellState
from mpiwatch.strict import exchange, findings, freed, memory, requests
from mpiwatch.strict.communicators import StrictComm, note_collective
from mpiwatch.strict.exchange import clock, progress
from mpiwatch.strict.findings import Category, Finding
from mpiwatch.strict.requests import StrictPrequest, StrictRequest
from mpiwatch.strict.windows import StrictWin, free_mem

__all__ = [
    "Category",
    "Finding",
    "StrictRequest",
    "begin",
    "end_cell",
    "end_function",
    "end_program",
    "progress",
    "report_errors_to",
]

NAP_S = 0.001

_world: StrictComm | None = None


def begin(world: WatchedComm, is_own_call: Callable[[], bool] | None = None) -> StrictComm:
    """Put `mpi4py.MPI` into strict mode; return the world's communicator. The first call is collective.

    `is_own_call` tells whether the program itself makes the present call; by default, its line does.
    """
    global _world  # noqa: PLW0603
    if is_own_call is not None:
        freed.is_own_call = is_own_call
    if _world is not None or world.watch is None:
        return _world or StrictComm(world)
    clock.rank, clock.times = world.rank, [0] * world.size
    _world = StrictComm(world)
    _world.open_exchange()
    register_mode(StrictMode(_world))
    return _world


class StrictMode(modes.Mode):
    """What strict mode adds to watched calls."""

    request, prequest = StrictRequest, StrictPrequest

    def __init__(self, world: StrictComm) -> None:
        self.world = world
        self.names = {**freed.tracking_names(), "Free_mem": free_mem, "Win": StrictWin}

    def progress(self) -> None:
        progress()

    def note_request(self, request: Any) -> None:
        requests.add_request(request)

    def check_message(self, call: str, rank: int, buffer: Any, datatype: Any) -> None:
        memory.check_dtype(call, rank, buffer, datatype)

    def note_collective(self, channel: Any, operation: str, root: int) -> None:
        note_collective(channel, operation, root)

    def end_cell(self) -> str:
        return end_cell()

    def end_program(self) -> modes.ProgramEnd:
        left, is_complete = end_program()
        has_errors = not all(finding.is_remark for finding in left)
        return modes.ProgramEnd(findings.render(left), findings.to_json(left), has_errors, is_complete)


def report_errors_to(note: Callable[[Finding], object]) -> None:
    """Call `note` at once for each error that is found: the MPI library may end this process for it."""
    findings.on_error = note


def end_cell() -> str:
    """Return what this rank's cell has left behind, as text; empty if nothing.

    This includes findings, requests and objects that no variable refers to any more, and messages that have
    arrived but were never received. No rank waits for another.
    """
    if _world is None:
        return ""
    _report_leftovers(only_dropped=True)
    return findings.render(findings.take())


def end_function() -> list[Finding]:
    """Return the findings about a function that has just returned, and what it has left behind.

    Unlike `end_cell`, this also reports requests that a variable still refers to. No rank waits for another.
    """
    if _world is None:
        return []
    requests.report_never_completed(only_dropped=False)
    _report_leftovers(only_dropped=True)
    return findings.take()


def end_program() -> tuple[list[Finding], bool]:
    """Return the findings about the program, and whether all ranks have reached the end of their programs.

    On rank 0, these are the findings of all ranks, on other ranks their own. Each rank calls this function
    when its program has returned. The ranks wait for one another, as they would at the end of MPI. If one
    hangs or has raised an error, each returns only its own findings.
    """
    if _world is None or _world._exchange is None or _world.watch is None:
        return [], True
    _world.watch.end_program()  # ranks that wait for this one learn that it has ended
    # The others stop waiting as soon as they see that this rank has raised an error. It must not complete the
    # barrier after that: it alone would go on to collect findings, and wait forever.
    has_raised = _world.watch.slot.cell_state == CellState.RAISED
    if not has_raised and _poll(_world, MPI.Intracomm.Ibarrier(_world._exchange.shadow).Test):
        return collect(_world), True
    requests.report_never_completed(only_dropped=False)
    return findings.take(), False


def collect(world: StrictComm) -> list[Finding]:
    """Return the findings of all ranks on rank 0, and clear them. All ranks have reached their ends."""
    assert world._exchange is not None
    shadow = world._exchange.shadow
    sent = np.array([exchange.headers_sent[rank] for rank in range(world.size)])
    coming = np.empty_like(sent)
    MPI.Intracomm.Alltoall(shadow, sent, coming)
    arrived = exchange.headers_received
    _poll(world, lambda: all(arrived[rank] >= number for rank, number in enumerate(coming)))
    _report_leftovers(only_dropped=False)
    for opened in list(exchange.exchanges):
        opened.discard()
    remaining = findings.take()
    everyone = MPI.Intracomm.gather(shadow, remaining)
    return remaining if everyone is None else [finding for theirs in everyone for finding in theirs]


def _report_leftovers(only_dropped: bool) -> None:
    for opened in list(exchange.exchanges):
        opened.report_leftovers()
    requests.report_never_completed(only_dropped)
    freed.report_never_freed(only_dropped)


def _poll(world: StrictComm, is_done: Callable[[], bool]) -> bool:
    """Wait until `is_done()`; return False if a hang was reported or a rank has failed before that."""
    watch = world.watch
    assert watch is not None
    while not is_done():
        progress()
        failed = any(slot.cell_state == CellState.RAISED for slot in watch.recorder.slots)
        if failed or watch.recorder.head.epoch != watch.epoch:
            return False
        sleep(NAP_S)
    return True
