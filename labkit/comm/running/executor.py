"""Running a schedule on MPI ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import numpy as np
from mpi4py import MPI

from labkit.comm import tags
from labkit.comm.running.counting import CountingComm
from labkit.comm.running.plan import RECEIVE, RECEIVE_TEMPORARY, REDUCE, SEND, WAIT, Plan, Step, plan
from labkit.schedules import Schedule
from mpiwatch import waiting
from mpiwatch.waiting import Waits, yield_core
from mpiwatch.wrapper import CommWrapper

SEGMENT_BYTES = 768 << 10  # several fit in a core's cache; shorter segments cost more calls than they hide
_POLLS = range(256)  # before a wait is handed over to `waiting`, which reads the clock
_PLANS_KEPT = 256

_plans: dict[tuple[int, int, int, int], tuple[Schedule, Plan]] = {}  # by id(schedule), rank, n, segment
_spare: list[np.ndarray] = []  # temporaries to be used again: the system has already given us their pages


def run(
    comm: MPI.Intracomm,
    schedule: Schedule,
    array: np.ndarray,
    op: MPI.Op = MPI.SUM,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Carry out the schedule on every rank's array, in place.

    Messages are sent from and received into the array itself; only values to be added pass through a
    temporary of about two segments. `op` has to be commutative: contributions are added in the order in which
    they arrive. `labkit.comm.run_reference` does the same in a few lines that are easy to read.

    Shapes: array (n,), contiguous and writable, the same n and dtype on all ranks; this is not checked here.

    Collective. A rank that never joins is reported: on a watched communicator as a hang report, otherwise as
    a TimeoutError on the ranks that wait, after `mpiwatch.waiting.DEADLINE_S` seconds.
    """
    before_schedule(comm, schedule, array)
    run_together(comm, schedule, array, op, segment_bytes)


def before_schedule(comm: MPI.Intracomm, schedule: Schedule, array: np.ndarray | None) -> None:
    """On a watched communicator, wait until all ranks have made this call; otherwise do nothing."""
    if isinstance(comm, CommWrapper):
        comm._before_schedule(schedule.name, array)


def run_together(
    comm: MPI.Intracomm,
    schedule: Schedule,
    array: np.ndarray,
    op: MPI.Op = MPI.SUM,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Do what `run` does, for ranks that are known to have made the same call."""
    if isinstance(comm, CountingComm):
        comm.counts.calls[schedule.name] += 1
        with comm.counts.under(schedule.name):
            _run(comm, schedule, array, op, segment_bytes)
    else:
        _run(comm, schedule, array, op, segment_bytes)


# A run in progress: what `_pending` needs. No class, since making an object would cost as much as a send.
_Progress = tuple[MPI.Intracomm, Schedule, list[Step], list[MPI.Request]]


def _pending(progress: _Progress, message: int) -> waiting.Pending:
    """Return which peer this message comes from or goes to."""
    comm, schedule, steps, _ = progress
    do, peer = next(
        (do, peer)
        for do, _, _, peer, _, number in steps
        if number == message and do in (SEND, RECEIVE, RECEIVE_TEMPORARY)
    )
    receives, sends = ([], [peer]) if do is SEND else ([peer], [])
    return waiting.Pending(comm, schedule.name, receives, sends)


def _run(comm: MPI.Intracomm, schedule: Schedule, array: np.ndarray, op: MPI.Op, segment_bytes: int) -> None:
    progress, store, size = _prepare(comm, schedule, array, segment_bytes)
    requests = progress[3]
    if not requests:
        return
    try:
        for number in _walk(progress, (array, store[:size].view(array.dtype)), op, tags.SCHEDULE):
            _wait(progress, number)
        for _ in _POLLS:
            if MPI.Request.Testall(requests):
                break
            yield_core()
        else:
            for number in range(len(requests)):  # one by one: each has the whole deadline
                _wait(progress, number)
    except BaseException:  # an interrupt, say: no message may arrive in memory that is the caller's again
        _cancel(requests)
        raise
    _spare.append(store)


def steps(
    comm: MPI.Intracomm,
    schedule: Schedule,
    array: np.ndarray,
    op: MPI.Op = MPI.SUM,
    segment_bytes: int = SEGMENT_BYTES,
) -> Iterator[Waits]:
    """Do what `run` does, as a generator that yields wherever `run` would wait, to be continued later.

    It yields a function that tells which message it waits for. `labkit.comm.averaging.startable` drives it.
    """
    counts = comm.counts if isinstance(comm, CountingComm) else None
    if counts:
        counts.calls[schedule.name] += 1
    progress, store, size = _prepare(comm, schedule, array, segment_bytes)
    requests = progress[3]
    if not requests:
        return
    walk = _walk(progress, (array, store[:size].view(array.dtype)), op, tags.STARTED)
    try:
        while True:
            # Counted under the schedule's name: only the messages that are sent before the next wait.
            with counts.under(schedule.name) if counts else nullcontext():
                number = next(walk, None)
            if number is None:
                break
            while not requests[number].Test():
                yield partial(_pending, progress, number)
        for number, request in enumerate(requests):
            while not request.Test():
                yield partial(_pending, progress, number)
    except BaseException:
        _cancel(requests)
        raise
    _spare.append(store)


def _prepare(
    comm: MPI.Intracomm, schedule: Schedule, array: np.ndarray, segment_bytes: int
) -> tuple[_Progress, np.ndarray, int]:
    """Return a run that has not begun, memory for its temporary, and how many bytes of it are needed."""
    segment = max(1, segment_bytes // array.itemsize)
    plan_steps, messages, values = _plan(schedule, comm.rank, array.size, segment)
    size = values * array.itemsize
    store = _spare.pop() if _spare else np.empty(0, np.uint8)
    if store.size < size:
        store = np.empty(size, np.uint8)
    return (comm, schedule, plan_steps, [MPI.REQUEST_NULL] * messages), store, size


def _cancel(requests: list[MPI.Request]) -> None:
    if MPI.Is_finalized():  # a generator that was never finished is closed when the interpreter ends
        return
    for request in requests:
        if request != MPI.REQUEST_NULL:
            request.Cancel()


def _walk(progress: _Progress, memory: tuple[np.ndarray, np.ndarray], op: MPI.Op, tag: int) -> Iterator[int]:
    """Carry out the steps; yield the number of each message that has to be complete before the next one."""
    comm, _, plan_steps, requests = progress
    array, temporary = memory
    send, receive = comm.Isend, comm.Irecv
    if isinstance(comm, CommWrapper):
        send, receive = comm._schedule_messages()
    tag += waiting.attempt() % 1000
    plain = op == MPI.SUM and array.dtype.kind in "iufc"
    for do, start, stop, peer, slot, number in plan_steps:
        if do is SEND:
            requests[number] = send(array[start:stop], peer, tag)
        elif do is WAIT:
            yield number
        elif do is REDUCE:
            _add(array[start:stop], temporary[slot : slot + stop - start], op, plain)
        elif do is RECEIVE:
            requests[number] = receive(array[start:stop], peer, tag)
        elif do is RECEIVE_TEMPORARY:
            requests[number] = receive(temporary[slot : slot + stop - start], peer, tag)
        else:
            array[start:stop] = temporary[slot : slot + stop - start]


def _wait(progress: _Progress, number: int) -> None:
    """Wait for one message, giving this core to any rank that needs it, perhaps to the sender."""
    arrived = progress[3][number].Test
    for _ in _POLLS:
        if arrived():
            return
        yield_core()
    waiting.wait(arrived, partial(_pending, progress, number))


def _add(own: np.ndarray, received: np.ndarray, op: MPI.Op, plain: bool) -> None:
    if plain:
        np.add(own, received, own)  # up to four times as fast as MPI libraries are
    else:
        op.Reduce_local(received, own)


def _plan(schedule: Schedule, rank: int, n: int, segment: int) -> Plan:
    """Return the plan for these arguments, made at the first call."""
    key = id(schedule), rank, n, segment
    known = _plans.get(key)
    if known is None:
        if len(_plans) >= _PLANS_KEPT:
            _plans.clear()
        # The schedule is kept with its plan, so that no other one can get its id.
        known = _plans[key] = schedule, plan(schedule, rank, n, segment)
    return known[1]
