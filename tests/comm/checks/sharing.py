"""Averaging in memory that the ranks of a node share: on one node, and on several pretended ones."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from labkit.comm import CollectiveError, CountingComm, shared_array
from labkit.comm.averaging.shared_memory import SharedMemory

# The node of each rank: all on one, alternating between two, in pairs, rank 0 alone, each rank alone.
NODES: tuple[Callable[[int], int], ...] = (
    lambda rank: 0,
    lambda rank: rank % 2,
    lambda rank: rank // 2,
    lambda rank: min(rank, 1),
    lambda rank: rank,
)


def on(node: Callable[[int], int]) -> SharedMemory:
    return SharedMemory(group=lambda comm: comm.Split(node(comm.rank), comm.rank))


def assert_averages(comm: MPI.Intracomm, shared_memory: SharedMemory, gradient: np.ndarray) -> None:
    """Check twice that the gradient becomes the weighted sum, with the same bits on all ranks."""
    for again in range(2):
        every = np.random.default_rng([again, gradient.size]).normal(size=(comm.size, gradient.size))
        gradient[...] = every[comm.rank]
        shared_memory(comm, gradient, 0.5 + comm.rank)
        expected = (0.5 + np.arange(comm.size)) @ every.astype(gradient.dtype)
        eps = np.finfo(gradient.dtype).eps
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=100 * comm.size**2 * eps)
        assert len(set(comm.allgather(gradient.tobytes()))) == 1


def check_shared_memory_on_any_nodes_leaves_the_weighted_sum(comm: MPI.Intracomm) -> None:
    for node in NODES:
        shared_memory = on(node)
        for n, dtype in ((comm.size - 1, np.float64), (33_001, np.float32)):
            assert_averages(comm, shared_memory, np.empty(n, dtype))  # copied into shared memory and back
            whole = shared_memory.array(comm, n + 7, dtype)
            whole[...] = -1
            assert_averages(comm, shared_memory, whole[3 : 3 + n])
            assert (whole[:3] == -1).all() and (whole[3 + n :] == -1).all()


def check_gradients_of_which_only_some_are_in_shared_memory(comm: MPI.Intracomm) -> None:
    for node in NODES:
        shared_memory = on(node)
        inside = shared_memory.array(comm, 103)
        assert_averages(comm, shared_memory, inside[:100] if comm.rank % 2 else np.empty(100, np.float32))
        start = comm.rank % 3  # all in shared memory, at different places
        assert_averages(comm, shared_memory, inside[start : start + 100])


def check_messages_between_nodes_are_counted(comm: MPI.Intracomm) -> None:
    counting = CountingComm(comm.Dup())
    every_rank_a_node = on(lambda rank: rank)
    every_rank_a_node(counting, np.ones(1200, np.float32), 1.0)
    known = {row.name: int(row.sent.sum()) for row in counting.traffic() if row.sent is not None}
    assert known == ({"ring_allreduce": 2 * (comm.size - 1) * 4800} if comm.size > 1 else {}), known
    counting.Free()


def check_shared_arrays_do_not_overlap_and_their_memory_is_used_again(comm: MPI.Intracomm) -> None:
    own = comm.Dup()
    one, two = shared_array(own, 1000), shared_array(own, 1000)
    one[...], two[...] = comm.rank, -1
    own.Barrier()
    assert (one == comm.rank).all() and (two == -1).all()
    address = two.ctypes.data
    view = two[10:20].reshape(2, 5)
    del two
    assert shared_array(own, 1000).ctypes.data != address  # a view still uses it
    del view
    again = shared_array(own, 900)
    assert comm.size == 1 or again.ctypes.data == address
    assert not again.any()
    own.Free()
    again[...] = 5  # freeing the communicator does not free an array in use
    one += 1


def check_too_little_shared_memory_is_an_error_on_every_rank(comm: MPI.Intracomm) -> None:
    if not os.path.isdir("/dev/shm"):
        return
    disk = os.statvfs("/dev/shm")
    n = disk.f_blocks * disk.f_frsize // 4 // comm.size + 4096
    try:
        shared_array(comm, n)
    except CollectiveError as error:
        assert "rank" in str(error) and "expected" in str(error) and "/dev/shm" in str(error), error
    else:
        raise AssertionError("no error")
    assert shared_array(comm, 10).sum() == 0
