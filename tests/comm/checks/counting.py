"""The counted traffic of a communicator equals what the schedule says."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.comm import ALGORITHMS, CountedTraffic, CountingComm, RingComm, ScheduledComm, run
from labkit.comm.running import complete
from labkit.schedules import (
    ALLREDUCE,
    Schedule,
    count_traffic,
    ring_allreduce,
    tree_allreduce,
)
from mpiwatch.waiting import yield_core
from tests.comm.checks.averaging import drive


class TreeComm(ScheduledComm):
    """Allreduce up a binomial tree and back down."""

    schedule = staticmethod(tree_allreduce)


def counted(comm: CountingComm, name: str) -> CountedTraffic:
    """What was counted under this name."""
    return {one.name: one for one in comm.traffic()}[name]


def assert_counted(row: CountedTraffic, schedule: Schedule, n: int, itemsize: int = 4) -> None:
    """Compare a row with the traffic of the schedule on n values."""
    expected = count_traffic(schedule, 4 * n)
    assert row.name == schedule.name and row.calls == 1 and row.sent is not None
    assert row.messages.sum() == expected.messages
    np.testing.assert_array_equal(row.sent.sum(1), expected.sent // 4 * itemsize)
    np.testing.assert_array_equal(row.sent.sum(0), expected.received // 4 * itemsize)


def check_counted_traffic_is_what_the_schedule_says(comm: MPI.Intracomm) -> None:
    counting = CountingComm(comm)
    for make in ALLREDUCE.values():
        for n in (1, 2, 7, 64, 101):
            counting.reset()
            run(counting, make(comm.size), np.ones(n, np.float32))
            assert_counted(counting.traffic()[0], make(comm.size), n)


def check_every_send_is_counted(comm: MPI.Intracomm) -> None:
    counting = CountingComm(comm)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out, into = np.ones(3, np.int32), np.zeros(3, np.int32)
    MPI.Attach_buffer(np.zeros(1000 + MPI.BSEND_OVERHEAD, np.uint8))
    for send in counting.Send, counting.Ssend, counting.Bsend, counting.Rsend:
        coming = counting.Irecv(into, left)
        comm.Barrier()
        send(out, right)
        coming.Wait()
    for isend in counting.Isend, counting.Issend, counting.Ibsend, counting.Irsend:
        coming = counting.Irecv(into, left)
        comm.Barrier()
        MPI.Request.Waitall([isend([out, 2, MPI.INT32_T], right), coming])
    counting.Sendrecv(out, right, 0, into, left)
    counting.Sendrecv_replace([into, MPI.INT32_T], right, 0, left)
    counting.Send(out, MPI.PROC_NULL)
    MPI.Detach_buffer()
    size = len(MPI.pickle.dumps({"a": 1}))
    for isend in counting.isend, counting.issend:
        going = isend({"a": 1}, right)
        assert counting.recv(source=left) == {"a": 1}
        going.wait()
    assert counting.sendrecv({"a": 1}, right, source=left) == {"a": 1}
    row = counted(counting, "messages")
    expected = np.zeros((comm.size, comm.size), np.int64)
    for rank in range(comm.size):
        expected[rank, (rank + 1) % comm.size] = 13
    np.testing.assert_array_equal(row.messages, expected)
    np.testing.assert_array_equal(row.sent, expected // 13 * (4 * 12 + 4 * 8 + 2 * 12 + 3 * size))


def check_the_librarys_own_traffic_is_unknown(comm: MPI.Intracomm) -> None:
    counting = CountingComm(comm)
    counting.Allreduce(MPI.IN_PLACE, np.ones(3))
    assert counting.allgather(counting.rank) == list(range(comm.size))
    rows = counting.traffic()
    assert [(row.name, row.calls, row.messages, row.sent) for row in rows] == [
        ("Allreduce", 1, None, None),
        ("allgather", 1, None, None),
    ]
    report = counting.report()
    assert report.count("unknown") == 4 and comm.allgather(report) == [report] * comm.size


def check_communicators_compose_in_any_order(comm: MPI.Intracomm) -> None:
    used, three = RingComm(comm), RingComm(TreeComm(CountingComm(comm)))
    used.Allreduce(MPI.IN_PLACE, np.ones(3))
    for both in RingComm(CountingComm(comm)), CountingComm(used), three:
        array = np.full(101, comm.rank)
        both.Allreduce(MPI.IN_PLACE, array)
        np.testing.assert_array_equal(array, sum(range(comm.size)))
        assert_counted(counted(both, "ring_allreduce"), ring_allreduce(comm.size), 101, 8)


def check_communicators_made_from_it_count_into_the_same_report(comm: MPI.Intracomm) -> None:
    counting = CountingComm(comm)
    first = 0 if comm.rank == 0 else 1
    for part in counting.Dup(), counting.Split(first), counting.Create(counting.Get_group()):
        if part.size > 1 and part.rank < 2:
            part.Sendrecv_replace(np.ones(1), 1 - part.rank)
        part.Free()
    assert not isinstance(counting.Split(MPI.UNDEFINED), CountingComm)
    row = next((one for one in counting.traffic() if one.sent is not None), None)
    pairs = np.zeros((comm.size, comm.size), np.int64)
    if comm.size > 1:
        pairs[0, 1] = pairs[1, 0] = 2
    if comm.size > 2:
        pairs[1, 2] = pairs[2, 1] = 1
    np.testing.assert_array_equal(pairs if row is None else row.messages, pairs)


def check_messages_are_counted_under_the_name_of_the_schedule(comm: MPI.Intracomm) -> None:
    blocking, counting = CountingComm(comm), CountingComm(comm)
    run(blocking, ring_allreduce(comm.size), np.ones(1003, np.float32))
    own = np.ones(1003, np.float32)
    steps = ALGORITHMS["ring"].steps(counting, own, 1.0)
    wait = next(steps, None)
    # A message of the caller's own goes out between those of the schedule.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    receiving = counting.Irecv(np.empty(3, np.int32), left, 0)
    counting.Isend(np.ones(3, np.int32), right).Wait()
    receiving.Wait()
    while wait is not None and not wait[0]():
        yield_core()
    complete(steps)
    counted = {row.name: row for row in counting.traffic()}
    assert counted.pop("messages").sent.sum() == 12 * comm.size
    assert [str(row) for row in counted.values()] == [str(row) for row in blocking.traffic()]
    counting.reset()
    drive(ALGORITHMS["mpi"].steps(counting, own, 1.0))
    assert [(row.name, row.calls, row.sent) for row in counting.traffic()] == [("Iallreduce", 1, None)]
