"""Begin strict mode, and list its findings at the end of a cell or program."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from mpiwatch import communicators, message
from mpiwatch.communicators import WatchedComm
from mpiwatch.recorder import CellState
from mpiwatch.requests import replace_requests
from mpiwatch.strict import findings, objects, regions, requests_made
from mpiwatch.strict.communicator import base
from mpiwatch.strict.communicator.comm import StrictComm
from mpiwatch.strict.exchange import exchanges, progress
from mpiwatch.strict.findings import Finding
from mpiwatch.strict.requests import StrictPrequest, StrictRequest
from mpiwatch.strict.signatures import check_dtype
from mpiwatch.strict.windows import StrictWin, free_mem

NAP_S = 0.001

_world: StrictComm | None = None


def begin(world: WatchedComm) -> StrictComm:
    """Put `mpi4py.MPI` into strict mode; return the world's communicator. The first call is collective."""
    global _world  # noqa: PLW0603
    if _world is not None or world.watch is None:
        return _world or StrictComm(world)
    watch = world.watch
    base.begin_clock(world.rank, world.size)
    _world = StrictComm(world)
    _world.begin()
    inner = watch.progress
    watch.progress = lambda: progress(inner())
    communicators.replace_world(_world)
    replace_requests(watch, world.deadline_s, StrictRequest, StrictPrequest)
    objects.replace_classes()
    message.on_list = check_dtype
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
    rank = _world.rank
    for exchange in list(exchanges):
        requests_made.report_leftovers(exchange)
    found = [
        *findings.take(),
        *requests_made.never_completed(rank, only_lost=True),
        *objects.never_freed(rank, only_lost=True),
    ]
    return findings.render(found)


class Ending(NamedTuple):
    """The findings about a program: on rank 0 those of all ranks, on other ranks their own.

    `is_complete`: whether all ranks have reached the end of their programs.
    """

    found: list[Finding]
    is_complete: bool


def end_program() -> Ending:
    """Return the findings about the program.

    Each rank calls this function when its program has returned. The ranks wait for one another, as they would
    at the end of MPI. If one hangs or has raised an error, each returns only its own findings.
    """
    world = _world
    if world is None or world._exchange is None or world.watch is None:
        return Ending([], True)
    world.watch.end_program()  # ranks that wait for this one learn that it has ended
    if not _poll(world, MPI.Intracomm.Ibarrier(world._exchange.shadow).Test):
        return Ending([*findings.take(), *requests_made.never_completed(world.rank, only_lost=False)], False)
    return Ending(collect(world), True)


def collect(world: StrictComm) -> list[Finding]:
    """Return the findings of all ranks on rank 0, and clear them. All ranks have reached their ends."""
    assert world._exchange is not None
    shadow, rank, traffic = world._exchange.shadow, world.rank, base.traffic
    sent = np.array([traffic.sent.get(each, 0) for each in range(world.size)])
    coming = np.empty_like(sent)
    MPI.Intracomm.Alltoall(shadow, sent, coming)
    _poll(world, lambda: all(traffic.received.get(each, 0) >= coming[each] for each in range(world.size)))
    for exchange in list(exchanges):
        requests_made.report_leftovers(exchange)
        exchange.discard()
    found = [
        *findings.take(),
        *requests_made.never_completed(rank, only_lost=False),
        *objects.never_freed(rank, only_lost=False),
    ]
    everyone = MPI.Intracomm.gather(shadow, found)
    return found if everyone is None else [finding for theirs in everyone for finding in theirs]


def forget_all() -> None:
    """Clear the findings and all records of what the program has made."""
    findings.take()
    requests_made.never_completed(0, only_lost=False)
    objects.never_freed(0, only_lost=False)
    regions.forget_all()
    base.traffic.sent.clear()
    base.traffic.received.clear()


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
