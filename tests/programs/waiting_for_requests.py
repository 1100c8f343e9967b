"""Wait for requests that complete, and for requests that cannot and so end with a report.

mpiexec -n 3 python waiting_for_requests.py
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from labkit.comm import sleeping_barrier
from mpiwatch.communicators import resume, watch
from mpiwatch.messages import replace_requests
from mpiwatch.waiting import HangError

raw = MPI.COMM_WORLD.Dup()
comm = watch()
comm.deadline_s = 1.0
replace_requests()
rank, size = comm.rank, comm.size
left, right = (rank - 1) % size, (rank + 1) % size
x, ones = np.zeros(3), np.ones(3)


def expect(pattern: str, call: Callable[[], object], stuck: tuple[int, ...] = (0, 1, 2)) -> None:
    """Check that the call ends with a report on the stuck ranks, and that the ranks can go on."""
    said = ""
    try:
        call()
    except HangError as error:
        said = str(error)
    sleeping_barrier(raw)
    resume()
    sleeping_barrier(raw)
    assert bool(said) == (rank in stuck), said
    assert not said or re.search(pattern, said, re.DOTALL), said


def wrong_tag() -> None:
    """Wait for a message that has another tag."""
    receiving = comm.Irecv(x, left, 7)
    MPI.Request.Waitall([receiving, comm.Isend(ones, right, 8 if rank == 1 else 7)])


def never_called() -> None:
    """Wait for a collective that rank 1 never calls."""
    if rank != 1:
        request = comm.Iallreduce(ones, x)
        request.Wait()


def persistent() -> None:
    """Start a receive for a message that no rank sends."""
    if rank == 0:
        request = comm.Recv_init(x, 2, 5)
        request.Start()
        request.Wait()


def any_of() -> None:
    """Wait for one of two messages that no rank sends."""
    if rank == 0:
        MPI.Request.Waitany([comm.irecv(source=1, tag=1), comm.irecv(source=2, tag=1)])


def works() -> None:
    """Wait for requests that complete, in every way."""
    sent = comm.isend({"from": rank}, right, 2)
    assert comm.irecv(source=left, tag=2).wait() == {"from": left}
    sent.wait()
    pair = [comm.irecv(source=left, tag=2), comm.isend([rank], right, 2)]
    assert MPI.Request.waitall(pair)[0] == [left]
    pair = [comm.irecv(source=left, tag=2), comm.isend([rank], right, 2)]
    assert sorted(MPI.Request.waitany(pair)[0] for _ in pair) == [0, 1]
    pair = [comm.Irecv(x, left, 2), comm.Isend(ones * rank, right, 2)]
    done: list[int] = []
    while (some := MPI.Request.Waitsome(pair)) is not None:
        done += some
    assert sorted(done) == [0, 1] and (x == left).all()
    pair = [comm.Recv_init(x, left, 5), comm.Send_init(ones, right, 5)]
    for _ in range(2):
        MPI.Prequest.Startall(pair)
        MPI.Request.Waitall(pair)
    for request in pair:
        request.Free()
    assert (x == 1).all() and isinstance(pair[0], MPI.Prequest)
    # A collective that a hang has left cannot be cancelled; Open MPI's Dup makes such collectives itself.
    own = comm.Create_group(comm.Get_group())
    own.Iallreduce(ones, x).Wait()
    assert (x == size).all()
    assert type(sent) is MPI.Request and isinstance(MPI.REQUEST_NULL, MPI.Request) and not sent


works()
expect(r"^ranks 0, 2 are waiting for Iallreduce to complete, rank 1 is not.*line 52", never_called, (0, 2))
expect(r"^rank 2 is waiting for its Irecv: no matching send from rank 1 \(tag 7\).*line 44", wrong_tag, (2,))
expect(r"wait for each other in a circle: each waits in Irecv", lambda: comm.Irecv(x, left, 3).Wait())
expect(r"rank 0 is waiting for its Recv_init \(from rank 2, tag 5\).*line 58.*line 60", persistent, (0,))
expect(r"rank 0 is waiting for its irecv", any_of, (0,))
works()
print(f"rank {rank} done")
