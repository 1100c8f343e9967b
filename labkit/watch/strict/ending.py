"""Strict mode as a whole: beginning it, and what it lists at the end of a cell or program."""

from __future__ import annotations

from time import monotonic, sleep

import numpy as np
from mpi4py import MPI

from labkit.watch import communicators
from labkit.watch.communicators import WatchedComm
from labkit.watch.flight_recorder.layout import CellState
from labkit.watch.requests.polled import replace_requests
from labkit.watch.strict import comm as strict_comm
from labkit.watch.strict import findings, objects, requests_made
from labkit.watch.strict.comm import StrictComm
from labkit.watch.strict.exchange import Clock, exchanges, progress
from labkit.watch.strict.findings import Finding
from labkit.watch.strict.requests import StrictPrequest, StrictRequest
from labkit.watch.strict.windows import StrictWin

NAP_S = 0.001

_world: StrictComm | None = None


def begin(world: WatchedComm) -> StrictComm:
    """Let all of `mpi4py.MPI` be strict, and return the world's communicator. The first call is collective."""
    global _world
    if _world is not None or world.watch is None:
        return _world or StrictComm(world)
    watch = world.watch
    strict_comm.clock = Clock(world.rank, world.size)
    _world = StrictComm(world)
    _world.begin()
    inner = watch.progress
    watch.progress = lambda: progress(inner())
    communicators.replace_world(_world)
    replace_requests(watch, world.deadline_s, StrictRequest, StrictPrequest)
    objects.replace_classes()
    setattr(MPI, "Win", StrictWin)  # noqa: B010  (mpi4py's stubs declare it final)
    return _world


def is_strict() -> bool:
    """Tell whether strict mode has begun in this process."""
    return _world is not None


def end_cell() -> str:
    """Return what this rank's cell has left behind, as text; empty if nothing.

    That is errors that were found, requests and objects that no variable holds any more, and messages that
    have arrived and were never received. No rank waits for another.
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


def end_program() -> list[Finding]:
    """Return what the program has left behind: on rank 0 that of all ranks, on the others their own.

    Each rank calls it when its program has returned. If a rank does not within the deadline, or has raised
    an error, the ranks do not wait for it, and each returns what it has found by itself.
    """
    world = _world
    if world is None or world._exchange is None or world.watch is None:
        return []
    shadow, rank = world._exchange.shadow, world.rank
    arrived = MPI.Intracomm.Ibarrier(shadow)
    has_met = _poll(world, arrived.Test)
    if has_met:
        traffic = strict_comm.traffic
        sent = np.array([traffic.sent.get(each, 0) for each in range(world.size)])
        coming = np.empty_like(sent)
        MPI.Intracomm.Alltoall(shadow, sent, coming)
        _poll(world, lambda: all(traffic.received.get(each, 0) >= coming[each] for each in range(world.size)))
        for exchange in list(exchanges):
            requests_made.report_leftovers(exchange)
    found = [
        *findings.take(),
        *requests_made.never_completed(rank, only_lost=False),
        *(objects.never_freed(rank, only_lost=False) if has_met else []),
    ]
    if not has_met:
        return found
    everyone = MPI.Intracomm.gather(shadow, found)
    return found if everyone is None else [finding for theirs in everyone for finding in theirs]


def _poll(world: StrictComm, is_done: object) -> bool:
    """Wait until `is_done()`, at most the deadline; return whether it was in time and no rank has failed."""
    assert callable(is_done) and world.watch is not None
    watch = world.watch
    deadline = monotonic() + world.deadline_s
    while not is_done():
        progress()
        failed = any(slot.cell_state == CellState.RAISED for slot in watch.recorder.slots)
        if failed or watch.recorder.head.epoch != watch.epoch or monotonic() > deadline:
            return False
        sleep(NAP_S)
    return True
