"""Running a schedule on MPI ranks."""

from __future__ import annotations

from os import sched_yield

import numpy as np
from mpi4py import MPI

from labkit.comm.running.counting import CountingComm
from labkit.comm.running.plan import ADD, RECEIVE, RECEIVE_BESIDE, SEND, WAIT, Plan, Step, plan
from labkit.schedules import Schedule

SEGMENT_BYTES = 768 << 10  # a few fit in a core's cache; shorter ones cost more calls than they hide
_TAG = 26_149  # apart from the tags of the caller's own messages
_PLANS_KEPT = 256

_plans: dict[tuple[int, int, int, int], tuple[Schedule, Plan]] = {}  # by the schedule's identity, rank, n …
_spare: list[np.ndarray] = []  # temporaries not in use: pages touched before cost nothing


def run(
    comm: MPI.Intracomm,
    schedule: Schedule,
    array: np.ndarray,
    op: MPI.Op = MPI.SUM,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Carry out the schedule on every rank's array, in place.

    Messages go out of and into the array itself; what is added on arrival passes through a temporary of two
    segments. Where the order of contributions matters, `op` is to be commutative.

    Shapes: array (n,), contiguous and writable, the same n and dtype on all ranks. Collective. Nothing is
    checked here.
    """
    if isinstance(comm, CountingComm):
        with comm.counts.during(schedule.name):
            _run(comm, schedule, array, op, segment_bytes)
    else:
        _run(comm, schedule, array, op, segment_bytes)


def _run(comm: MPI.Intracomm, schedule: Schedule, array: np.ndarray, op: MPI.Op, segment_bytes: int) -> None:
    segment = max(1, segment_bytes // array.itemsize)
    steps, messages, width = _plan(schedule, comm.rank, array.size, segment)
    if not steps:
        return
    size = width * array.itemsize
    store = _spare.pop() if _spare else np.empty(0, np.uint8)
    if store.size < size:
        store = np.empty(size, np.uint8)
    requests: list[MPI.Request] = [MPI.REQUEST_NULL] * messages
    try:
        _walk(comm, steps, requests, (array, store[:size].view(array.dtype)), op)
        while not MPI.Request.Testall(requests):
            sched_yield()
    except BaseException:  # interrupted, say: nothing may arrive in memory that is the caller's again
        for request in requests:
            if request != MPI.REQUEST_NULL:
                request.Cancel()
        raise
    _spare.append(store)


def _walk(
    comm: MPI.Intracomm,
    steps: list[Step],
    requests: list[MPI.Request],
    memory: tuple[np.ndarray, np.ndarray],
    op: MPI.Op,
) -> None:
    (array, beside), send, receive = memory, comm.Isend, comm.Irecv
    plain = op == MPI.SUM and array.dtype.kind in "iufc"
    for do, start, stop, peer, slot, number in steps:
        if do is SEND:
            requests[number] = send(array[start:stop], peer, _TAG)
        elif do is WAIT:
            _wait(requests[number])
        elif do is ADD:
            _add(array[start:stop], beside[slot : slot + stop - start], op, plain)
        elif do is RECEIVE:
            requests[number] = receive(array[start:stop], peer, _TAG)
        elif do is RECEIVE_BESIDE:
            requests[number] = receive(beside[slot : slot + stop - start], peer, _TAG)
        else:
            array[start:stop] = beside[slot : slot + stop - start]


def _wait(request: MPI.Request) -> None:
    """Wait, giving this core to a rank that needs it: perhaps to the one whose message this is."""
    arrived = request.Test
    while not arrived():
        sched_yield()


def _add(own: np.ndarray, came: np.ndarray, op: MPI.Op, plain: bool) -> None:
    if plain:
        np.add(own, came, own)  # up to four times as fast as MPI libraries are
    else:
        op.Reduce_local(came, own)


def _plan(schedule: Schedule, rank: int, n: int, segment: int) -> Plan:
    """Return the plan for these, worked out the first time."""
    key = id(schedule), rank, n, segment
    known = _plans.get(key)
    if known is None:
        if len(_plans) >= _PLANS_KEPT:
            _plans.clear()
        known = _plans[key] = schedule, plan(schedule, rank, n, segment)  # kept, so that its id stays its own
    return known[1]
