"""Begin strict mode, and list its findings at the end of a cell or program."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

import numpy as np
from mpi4py import MPI

from mpiwatch import buffers, communicators, requests
from mpiwatch.communicators import WatchedComm
from mpiwatch.recorder import CellState
from mpiwatch.strict import calls, findings
from mpiwatch.strict.communicator import StrictComm
from mpiwatch.strict.findings import Finding
from mpiwatch.strict.memory import check_dtype
from mpiwatch.strict.windows import StrictWin, free_mem

NAP_S = 0.001

_world: StrictComm | None = None


def begin(world: WatchedComm) -> StrictComm:
    """Put `mpi4py.MPI` into strict mode; return the world's communicator. The first call is collective."""
    global _world  # noqa: PLW0603
    if _world is not None or world.watch is None:
        return _world or StrictComm(world)
    watch = world.watch
    calls.clock.begin(world.rank, world.size)
    _world = StrictComm(world)
    _world.begin()
    inner = watch.progress
    watch.progress = lambda: calls.progress(inner())
    communicators.replace_world(_world)
    requests.replace_requests(calls.StrictRequest, calls.StrictPrequest)
    requests.on_request = calls.add_request
    findings.replace_classes()
    buffers.on_list = check_dtype
    MPI.Free_mem = free_mem
    setattr(MPI, "Win", StrictWin)  # noqa: B010  (mpi4py's stubs declare it final)
    return _world


def end_cell() -> str:
    """Return what this rank's cell has left behind, as text; empty if nothing.

    This includes findings, requests and objects that no variable refers to any more, and messages that have
    arrived but were never received. No rank waits for another.
    """
    if _world is None:
        return ""
    _report_leftovers(only_lost=True)
    return findings.render(findings.take())


def end_program() -> tuple[list[Finding], bool]:
    """Return the findings about the program, and whether all ranks have reached the end of their programs.

    On rank 0, these are the findings of all ranks, on other ranks their own. Each rank calls this function
    when its program has returned. The ranks wait for one another, as they would at the end of MPI. If one
    hangs or has raised an error, each returns only its own findings.
    """
    if _world is None or _world._exchange is None or _world.watch is None:
        return [], True
    _world.watch.end_program()  # ranks that wait for this one learn that it has ended
    if _poll(_world, MPI.Intracomm.Ibarrier(_world._exchange.shadow).Test):
        return collect(_world), True
    calls.report_never_completed(only_lost=False)
    return findings.take(), False


def collect(world: StrictComm) -> list[Finding]:
    """Return the findings of all ranks on rank 0, and clear them. All ranks have reached their ends."""
    assert world._exchange is not None
    shadow = world._exchange.shadow
    sent = np.array([calls.headers_sent[rank] for rank in range(world.size)])
    coming = np.empty_like(sent)
    MPI.Intracomm.Alltoall(shadow, sent, coming)
    _poll(world, lambda: all(calls.headers_received[rank] >= number for rank, number in enumerate(coming)))
    _report_leftovers(only_lost=False)
    for exchange in list(calls.exchanges):
        exchange.discard()
    found = findings.take()
    everyone = MPI.Intracomm.gather(shadow, found)
    return found if everyone is None else [finding for theirs in everyone for finding in theirs]


def _report_leftovers(only_lost: bool) -> None:
    for exchange in list(calls.exchanges):
        exchange.report_leftovers()
    calls.report_never_completed(only_lost)
    findings.report_never_freed(only_lost)


def _poll(world: StrictComm, is_done: Callable[[], bool]) -> bool:
    """Wait until `is_done()`; return False if a hang was reported or a rank has failed before that."""
    watch = world.watch
    assert watch is not None
    while not is_done():
        calls.progress()
        failed = any(slot.cell_state == CellState.RAISED for slot in watch.recorder.slots)
        if failed or watch.recorder.head.epoch != watch.epoch:
            return False
        sleep(NAP_S)
    return True
