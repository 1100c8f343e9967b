"""Functions of a communicator, each with other calls of MPI: their recordings are compared with counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

PROGRAMS: list[Callable[[Any], None]] = []
TAG = 7


def program(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Add a function to the programs."""
    PROGRAMS.append(function)
    return function


def neighbours(comm: Any) -> tuple[int, int]:
    """Return the ranks to the left and to the right on a ring."""
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


@program
def ring_of_requests(comm: Any) -> None:
    left, right = neighbours(comm)
    received = np.empty(4)
    for step in range(3):
        request = comm.Irecv(received, left, step)
        comm.Send(np.full(4, float(comm.rank)), right, step)
        request.Wait()


@program
def ring_of_sendrecv(comm: Any) -> None:
    left, right = neighbours(comm)
    received = np.empty(3, np.int32)
    comm.Sendrecv(np.arange(3, dtype=np.int32), right, TAG, received, left, TAG)


@program
def sendrecv_replace(comm: Any) -> None:
    left, right = neighbours(comm)
    comm.Sendrecv_replace(np.arange(5.0), right, TAG, left, TAG)


@program
def sendrecv_of_objects(comm: Any) -> None:
    left, right = neighbours(comm)
    assert comm.sendrecv({"rank": comm.rank}, right, source=left) == {"rank": left}


@program
def messages_to_the_root(comm: Any) -> None:
    if comm.rank:
        comm.Send(np.ones(comm.rank), 0, comm.rank)
        return
    status = MPI.Status()
    for _ in range(1, comm.size):
        received = np.empty(comm.size)
        comm.Recv(received, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        assert status.Get_count(MPI.DOUBLE) == status.source == status.tag


@program
def objects_to_the_root(comm: Any) -> None:
    if comm.rank:
        comm.send([comm.rank] * 100, 0)
    else:
        assert sorted(comm.recv() for _ in range(1, comm.size)) == [[k] * 100 for k in range(1, comm.size)]


@program
def objects_with_requests(comm: Any) -> None:
    left, right = neighbours(comm)
    requests = [comm.irecv(source=left, tag=TAG), comm.isend("x" * comm.rank, right, TAG)]
    assert MPI.Request.waitall(requests)[0] == "x" * left


@program
def requests_waited_for_together(comm: Any) -> None:
    received = np.empty((comm.size, 2))
    requests = [comm.Irecv(received[k], k, k) for k in range(comm.size)]
    requests += [comm.Isend(np.full(2, float(comm.rank)), k, comm.rank) for k in range(comm.size)]
    MPI.Request.Waitall(requests)


@program
def requests_waited_for_one_by_one(comm: Any) -> None:
    received = np.empty((comm.size, 2))
    requests = [comm.Irecv(received[k], k, k) for k in range(comm.size)]
    sent = np.full(2, float(comm.rank))
    sends = [comm.Isend(sent, k, comm.rank) for k in range(comm.size)]
    for _ in range(comm.size):
        MPI.Request.Waitany(requests, MPI.Status())
    MPI.Request.Waitall(sends, [MPI.Status() for _ in sends])


@program
def requests_waited_for_as_they_come(comm: Any) -> None:
    received = np.empty((comm.size, 2))
    sent = np.full(2, float(comm.rank))
    requests = [comm.Irecv(received[k], k, k) for k in range(comm.size)]
    requests += [comm.Isend(sent, k, comm.rank) for k in range(comm.size)]
    while MPI.Request.Waitsome(requests) is not None:
        pass


@program
def tests_of_requests(comm: Any) -> None:
    left, right = neighbours(comm)
    received, sent = np.empty(2), np.ones(2)
    request = comm.Irecv(received, left, TAG)
    sending = comm.Isend(sent, right, TAG)
    while not request.Test():
        pass
    while not MPI.Request.Testall([sending]):
        pass


@program
def tests_of_objects(comm: Any) -> None:
    left, right = neighbours(comm)
    requests = [comm.isend(comm.rank, right, TAG), comm.irecv(source=left, tag=TAG)]
    done = False
    while not done:
        done, objects = MPI.Request.testall(requests)
    assert objects[1] == left


@program
def synchronous_sends(comm: Any) -> None:
    left, right = neighbours(comm)
    received = np.empty(1)
    request = comm.Irecv(received, left)
    comm.Ssend(np.ones(1), right)
    request.Wait()
    request = comm.irecv(source=left)
    comm.ssend("object", right)
    assert request.wait() == "object"


@program
def other_kinds_of_sends(comm: Any) -> None:
    left, right = neighbours(comm)
    received = np.empty((2, 1))
    requests = [comm.Irecv(received[k], left, k) for k in range(2)]
    comm.Barrier()
    comm.Rsend(np.ones(1), right, 0)
    sending = comm.Issend(np.ones(1), right, 1)
    MPI.Request.Waitall([*requests, sending])


@program
def buffered_sends(comm: Any) -> None:
    left, right = neighbours(comm)
    MPI.Attach_buffer(bytearray(1000 + MPI.BSEND_OVERHEAD))
    comm.Bsend(np.ones(2), right, TAG)
    comm.Recv(np.empty(2), left, TAG)
    MPI.Detach_buffer()


@program
def persistent_requests(comm: Any) -> None:
    left, right = neighbours(comm)
    received, sent = np.empty(2), np.ones(2)
    requests = [comm.Recv_init(received, left, TAG), comm.Send_init(sent, right, TAG)]
    for _ in range(3):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()


@program
def probes(comm: Any) -> None:
    left, right = neighbours(comm)
    request = comm.Isend(np.arange(3.0), right, TAG)
    status = MPI.Status()
    comm.Probe(left, TAG, status)
    comm.Recv(np.empty(status.Get_count(MPI.DOUBLE)), status.source, status.tag)
    request.Wait()


@program
def matched_probes(comm: Any) -> None:
    left, right = neighbours(comm)
    request = comm.Isend(np.arange(3.0), right, TAG)
    message = comm.Mprobe(left, TAG)
    message.Recv(np.empty(3))
    request.Wait()


@program
def matched_probes_without_a_wait(comm: Any) -> None:
    left, right = neighbours(comm)
    request = comm.isend([1, 2], right, TAG)
    message = None
    while message is None:
        message = comm.improbe(left, TAG)
    assert message.recv() == [1, 2]
    request.wait()


@program
def no_process(comm: Any) -> None:
    received = np.empty(1)
    comm.Send(np.ones(1), MPI.PROC_NULL)
    comm.Recv(received, MPI.PROC_NULL)
    comm.Sendrecv(np.ones(1), MPI.PROC_NULL, 0, received, MPI.PROC_NULL)
    comm.Isend(np.ones(1), MPI.PROC_NULL).Wait()


@program
def lists_as_messages(comm: Any) -> None:
    left, right = neighbours(comm)
    received = np.zeros(6)
    request = comm.Irecv([received, 2, MPI.DOUBLE], left)
    comm.Send([np.arange(6.0), 2, MPI.DOUBLE], right)
    request.Wait()


@program
def many_tags_out_of_order(comm: Any) -> None:
    left, right = neighbours(comm)
    requests = [comm.Isend(np.full(1 + tag, float(tag)), right, tag) for tag in range(4)]
    for tag in reversed(range(4)):
        received = np.empty(1 + tag)
        comm.Recv(received, left, tag)
        assert (received == tag).all()
    MPI.Request.Waitall(requests)


@program
def collectives_of_arrays(comm: Any) -> None:
    sent, received = np.ones(comm.size), np.empty(comm.size)
    comm.Barrier()
    comm.Bcast(sent, comm.size - 1)
    comm.Reduce(sent, received, root=0)
    comm.Allreduce(sent, received)
    comm.Allreduce(MPI.IN_PLACE, received)
    comm.Alltoall(sent, received)
    comm.Scan(sent, received)
    comm.Exscan(sent, received)
    comm.Reduce_scatter_block(sent, np.empty(1))


@program
def collectives_with_blocks(comm: Any) -> None:
    table, row = np.ones((comm.size, 2)), np.empty(2)
    comm.Gather(row, table if comm.rank == 0 else None)
    comm.Scatter(table if comm.rank == 0 else None, row)
    comm.Allgather(row, table)
    counts = [2] * comm.size
    comm.Allgatherv(row, [table, counts])


@program
def collectives_of_objects(comm: Any) -> None:
    comm.barrier()
    assert comm.bcast("text", 0) == "text"
    assert comm.allreduce(1) == comm.size
    comm.reduce(1)
    comm.gather(comm.rank, 0)
    comm.scatter(list(range(comm.size)), 0)
    comm.allgather(comm.rank)
    comm.alltoall(list(range(comm.size)))
    comm.scan(1)


@program
def collectives_with_requests(comm: Any) -> None:
    sent, received = np.ones(3), np.empty(3)
    requests = [comm.Ibarrier(), comm.Iallreduce(sent, received), comm.Ibcast(sent.copy(), 0)]
    MPI.Request.Waitall(requests)
    comm.Iallgather(np.ones(1), np.empty(comm.size)).Wait()


@program
def parts_of_the_ranks(comm: Any) -> None:
    half = comm.Split(comm.rank % 2, comm.rank)
    left, right = neighbours(half)
    half.Sendrecv(np.ones(2), right, 0, np.empty(2), left, 0)
    half.Allreduce(np.ones(1), np.empty(1))


@program
def two_communicators(comm: Any) -> None:
    other = comm.Dup()
    left, right = neighbours(comm)
    first, second = np.empty(1), np.empty(2)
    requests = [other.Irecv(second, left), comm.Irecv(first, left)]
    comm.Send(np.ones(1), right)
    other.Send(np.ones(2), right)
    MPI.Request.Waitall(requests)


@program
def a_grid(comm: Any) -> None:
    grid = comm.Create_cart([comm.size], [True])
    source, dest = grid.Shift(0, 1)
    grid.Sendrecv(np.ones(1), dest, 0, np.empty(1), source, 0)


@program
def a_tree(comm: Any) -> None:
    total, step = np.full(2, float(comm.rank)), 1
    part = np.empty(2)
    while step < comm.size:
        if comm.rank % (2 * step) == step:
            comm.Send(total, comm.rank - step)
            break
        if comm.rank + step < comm.size:
            comm.Recv(part, comm.rank + step)
            total += part
        step *= 2
    if comm.rank == 0:
        np.testing.assert_array_equal(total, comm.size * (comm.size - 1) / 2)


@program
def a_large_message(comm: Any) -> None:
    left, right = neighbours(comm)
    received = np.empty(1 << 18)
    request = comm.Irecv(received, left)
    comm.Send(np.zeros(1 << 18), right)
    request.Wait()


@program
def exchange_with_a_request(comm: Any) -> None:
    left, right = neighbours(comm)
    if hasattr(comm, "Isendrecv"):
        try:
            comm.Isendrecv(np.ones(2), right, 0, np.empty(2), left, 0).Wait()
        except NotImplementedError:  # an MPI library before version 4
            comm.Sendrecv(np.ones(2), right, 0, np.empty(2), left, 0)
