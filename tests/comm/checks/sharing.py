"""Averaging in memory that the ranks of a node share: on one node, and on several pretended ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from mpi4py import MPI

from labkit.comm import ALGORITHMS, shared_array
from labkit.comm.shared_memory import _node
from tests.comm.checks.averaging import drive
from tests.raising import error_on_every_rank

# The node of each rank: all on one, alternating between two, in pairs, rank 0 alone, each rank alone.
NODES: tuple[Callable[[int], int], ...] = (
    lambda rank: 0,
    lambda rank: rank % 2,
    lambda rank: rank // 2,
    lambda rank: min(rank, 1),
    lambda rank: rank,
)


@contextmanager
def on_nodes(comm: MPI.Intracomm, node: Callable[[int], int]) -> Iterator[MPI.Intracomm]:
    """Yield a duplicate of the communicator whose ranks share memory with those of the same node only."""
    own = comm.Dup()
    split = lambda comm: comm.Split(node(comm.rank), comm.rank)  # noqa: E731
    with mock.patch("labkit.comm.shared_memory.by_node", split):
        yield own


def assert_averages(comm: MPI.Intracomm, gradient: np.ndarray) -> None:
    """Check that the gradient becomes the weighted sum, at once and driven, the same bits on all ranks."""
    algorithm = ALGORITHMS["shared-memory"]
    for again in range(2):
        every = np.random.default_rng([again, gradient.size]).normal(size=(comm.size, gradient.size))
        gradient[...] = every[comm.rank]
        if again:
            drive(algorithm.steps(comm, gradient, 0.5 + comm.rank))
        else:
            algorithm(comm, gradient, 0.5 + comm.rank)
        expected = (0.5 + np.arange(comm.size)) @ every.astype(gradient.dtype)
        eps = np.finfo(gradient.dtype).eps
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=100 * comm.size**2 * eps)
        assert len(set(comm.allgather(gradient.tobytes()))) == 1


def check_shared_memory_on_any_nodes_leaves_the_weighted_sum(comm: MPI.Intracomm) -> None:
    for node in NODES:
        with on_nodes(comm, node) as own:
            for n, dtype in ((comm.size - 1, np.float64), (33_001, np.float32)):
                assert_averages(own, np.empty(n, dtype))  # copied into shared memory and back
                whole = shared_array(own, n + 7, dtype)
                whole[...] = -1
                assert_averages(own, whole[3 : 3 + n])
                assert (whole[:3] == -1).all() and (whole[3 + n :] == -1).all()


def check_gradients_of_which_only_some_are_in_shared_memory(comm: MPI.Intracomm) -> None:
    for node in NODES:
        with on_nodes(comm, node) as own:
            inside = shared_array(own, 103)
            assert_averages(own, inside[:100] if comm.rank % 2 else np.empty(100, np.float32))
            start = comm.rank % 3  # all in shared memory, at different places
            assert_averages(own, inside[start : start + 100])


def check_shared_arrays_do_not_overlap_and_are_freed_when_nothing_views_them(comm: MPI.Intracomm) -> None:
    own = comm.Dup()
    one, two = shared_array(own, 1000), shared_array(own, 1000)
    one[...], two[...] = comm.rank, -1
    own.Barrier()
    assert (one == comm.rank).all() and (two == -1).all()
    view = two[10:20].reshape(2, 5)
    del two
    shared_array(own, 1000)
    assert (view == -1).all()
    del view
    again = shared_array(own, 900)
    assert not again.any()
    assert len(_node(own).segments) == 3  # those of `one` and `again`, and the node's own
    own.Free()
    again[...] = 5  # freeing the communicator does not free an array in use
    one += 1


def check_too_little_shared_memory_is_an_error_on_every_rank(comm: MPI.Intracomm) -> None:
    if not os.path.isdir("/dev/shm"):
        return
    disk = os.statvfs("/dev/shm")
    n = disk.f_blocks * disk.f_frsize // 4 // comm.size + 4096
    said = error_on_every_rank(comm, lambda: shared_array(comm, n))
    assert "rank" in said and "expected" in said and "/dev/shm" in said, said
    assert shared_array(comm, 10).sum() == 0
