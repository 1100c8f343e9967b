"""Compare every call of the watched communicator with MPI's own; print each difference."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpiwatch.communicators import WatchedComm, resume, watch

raw, watched = MPI.COMM_WORLD, watch()
rank, size = raw.rank, raw.size
right, left = (rank + 1) % size, (rank - 1) % size
each = [r + 1 for r in range(size)]  # counts that differ from rank to rank
places = [sum(each[:r]) for r in range(size)]


def x(n: int = 3) -> np.ndarray:
    return np.arange(n, dtype=np.float64) * (rank + 1)


def filled(call, n: int = 3) -> np.ndarray:
    """Return an array after a call has written to it."""
    array = np.zeros(n)
    call(array)
    return array


def replaced(c: MPI.Intracomm) -> np.ndarray:
    array = x()
    c.Sendrecv_replace(array, right, 1, left, 1)
    return array


def around(c: MPI.Intracomm, n: int) -> np.ndarray:
    array = x(n)
    if rank == 0 and size > 1:
        c.Ssend(array, right)
    if size > 1:
        c.Recv(array, left)
    if rank and size > 1:
        c.Send(array, right)
    c.Barrier()
    return array


def probed(c: MPI.Intracomm) -> object:
    request = c.isend({"n": rank}, right, 3)
    status = MPI.Status()
    c.Probe(left, 3, status)
    c.probe(left, 3)
    message = c.mprobe(left, 3)
    got = message.recv()
    request.wait()
    return got, status.Get_source()


CALLS = {
    "Bcast": lambda c: filled(lambda b: c.Bcast(x() if rank == size - 1 else b, size - 1)),
    "Reduce": lambda c: filled(lambda b: c.Reduce(x(), b, root=size - 1)),
    "Allreduce": lambda c: filled(lambda b: c.Allreduce(x(), b, op=MPI.MAX)),
    "Allreduce list": lambda c: filled(lambda b: c.Allreduce([x(), 2, MPI.DOUBLE], [b, 2, MPI.DOUBLE])),
    "Gather": lambda c: filled(lambda b: c.Gather(x(), b if rank == 0 else None), 3 * size),
    "Gather, counted": lambda c: filled(
        lambda b: c.Gather(x(), [b, 3, MPI.DOUBLE] if rank == 0 else None), 3 * size
    ),
    "Allgather, counted": lambda c: filled(lambda b: c.Allgather([x(), 3], [b, 3]), 3 * size),
    "Allreduce, in place as None": lambda c: filled(lambda b: c.Allreduce(None if rank else x(), b)),
    "Gatherv": lambda c: filled(
        lambda b: c.Gatherv(x(rank + 1), [b, each] if rank == 0 else None), sum(each)
    ),
    "Scatter": lambda c: filled(lambda b: c.Scatter(x(3 * size) if rank == 0 else None, b)),
    "Scatter in place": lambda c: c.Scatter(x(3 * size), MPI.IN_PLACE) if rank == 0 else c.Scatter(None, x()),
    "Scatterv": lambda c: filled(
        lambda b: c.Scatterv([x(sum(each)), (each, places)] if rank == 0 else None, b), rank + 1
    ),
    "Allgather": lambda c: filled(lambda b: c.Allgather(x(), b), 3 * size),
    "Allgather in place": lambda c: filled(lambda b: c.Allgather(MPI.IN_PLACE, b), 3 * size),
    "Allgatherv": lambda c: filled(lambda b: c.Allgatherv(x(rank + 1), [b, each]), sum(each)),
    "Alltoall": lambda c: filled(lambda b: c.Alltoall(x(2 * size), b), 2 * size),
    "Alltoallv": lambda c: filled(lambda b: c.Alltoallv([x(size), [1] * size], [b, [1] * size]), size),
    "Reduce_scatter": lambda c: filled(lambda b: c.Reduce_scatter(x(sum(each)), b, each), rank + 1),
    "Reduce_scatter_block": lambda c: filled(lambda b: c.Reduce_scatter_block(x(2 * size), b), 2),
    "Scan": lambda c: filled(lambda b: c.Scan(x(), b)),
    "Exscan": lambda c: filled(lambda b: c.Exscan(x(), b)),
    "Barrier": lambda c: c.Barrier(),
    "barrier": lambda c: c.barrier(),
    "bcast": lambda c: c.bcast({"from": rank}, root=size - 1),
    "gather": lambda c: c.gather((rank, "a"), root=size - 1),
    "scatter": lambda c: c.scatter([str(r) for r in range(size)] if rank == 0 else None),
    "allgather": lambda c: c.allgather([rank]),
    "alltoall": lambda c: c.alltoall([10 * rank + r for r in range(size)]),
    "reduce": lambda c: c.reduce([rank], root=size - 1),
    "allreduce": lambda c: c.allreduce(rank + 1, op=MPI.PROD),
    "allreduce, own": lambda c: c.allreduce(rank, op=max),
    "scan": lambda c: c.scan(rank),
    "exscan": lambda c: c.exscan(rank),
    "Sendrecv": lambda c: filled(lambda b: c.Sendrecv(x(), right, 5, b, left, 5)),
    "Sendrecv_replace": replaced,
    "sendrecv": lambda c: c.sendrecv(rank, right, source=left),
    "a large message around the ring": lambda c: around(c, 1 << 18),
    "probed": probed,
    "PROC_NULL": lambda c: (c.send(1, MPI.PROC_NULL), c.recv(source=MPI.PROC_NULL)),
}

wrong = []
for name, call in CALLS.items():
    ours, theirs = call(watched), call(raw)
    if not np.array_equal(np.asarray(ours, dtype=object), np.asarray(theirs, dtype=object)):
        wrong.append(f"rank {rank}: {name}: {ours} instead of {theirs}")
made = {
    "Dup": watched.Dup(),
    "Clone": watched.Clone(),
    "Split": watched.Split(rank % 2, -rank),
    "Create": watched.Create(watched.group),
    "Create_group": watched.Create_group(watched.group),
    "Split_type": watched.Split_type(MPI.COMM_TYPE_SHARED),
    "Create_cart": watched.Create_cart([size], [True]),
    "Create_graph": watched.Create_graph(list(range(1, size + 1)), [(r + 1) % size for r in range(size)]),
}
made["Sub"] = made["Create_cart"].Sub([True])
made["Dup of Split"] = made["Split"].Dup()
for name, comm in made.items():
    if comm.watch is None:
        wrong.append(f"rank {rank}: {name} is not watched")
    if comm.allreduce(1) != comm.size:
        wrong.append(f"rank {rank}: {name} has another size")
assert isinstance(made["Sub"], MPI.Cartcomm) and all(isinstance(comm, WatchedComm) for comm in made.values())
assert watched.Split(MPI.UNDEFINED) == MPI.COMM_NULL
for _ in range(200):  # rows of the flight recorder are reused
    comm = watched.Dup()
    assert comm.watch is not None and comm.allreduce(rank) == size * (size - 1) // 2
    comm.Free()
# A message under way needs this rank's help while it waits at the rendezvous.
large = x(1 << 20)
request = watched.Isend(large, right)
watched.Barrier() if rank == 0 else None
room = np.empty_like(large)
watched.Recv(room, left)
watched.Barrier() if rank else None
request.Wait()
resume()
faults = raw.gather(wrong)
if rank == 0:
    print(*[fault for each_ in faults for fault in each_], "all calls compared", sep="\n")
