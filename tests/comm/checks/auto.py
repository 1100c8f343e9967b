"""The algorithm `auto`: which algorithm it stands for, in which memory, and that all ranks agree."""

from __future__ import annotations

from unittest import mock

import numpy as np
from mpi4py import MPI

from labkit.comm import ALGORITHMS, Averaging, CountingComm, EmulatedComm, Link
from labkit.comm.algorithms import library_allreduce
from labkit.comm.auto import RING_FROM, SHARED_MEMORY_FROM, chosen

auto = ALGORITHMS["auto"]
LARGE = SHARED_MEMORY_FROM // 4  # values of float32


def of_auto(comm: MPI.Intracomm, n: int, **options: int) -> str:
    """Return the algorithm for n values, after a check of the average that it leaves."""
    averaging, memory = auto.prepare(comm, n, np.float32, **options)
    assert (memory is not None) == (averaging.algorithm == "shared-memory")
    gradient = np.empty(n, np.float32) if memory is None else memory
    assert gradient.shape == (n,)
    for average in averaging, averaging.quick(), auto:  # the last one, too, averages in any memory
        gradient[...] = comm.rank
        average(comm, gradient, 0.5)
        assert (gradient == 0.5 * sum(range(comm.size))).all(), average
    assert len(set(comm.allgather(averaging.algorithm))) == 1
    return averaging.algorithm


def check_large_gradients_are_averaged_in_shared_memory_and_others_by_the_library(
    comm: MPI.Intracomm,
) -> None:
    large = "shared-memory" if comm.size > 1 else "mpi"
    for _ in range(2):
        assert [of_auto(comm, n) for n in (0, 1, LARGE - 1)] == ["mpi"] * 3
        assert [of_auto(comm, n) for n in (LARGE, 2 * LARGE + 3)] == [large] * 2
    assert of_auto(comm, 2 * LARGE, at_once=LARGE - 1) == "mpi"
    assert of_auto(comm, 2 * LARGE, at_once=LARGE) == large


def check_large_gradients_are_averaged_by_the_ring_between_machines_with_a_rank_each(
    comm: MPI.Intracomm,
) -> None:
    enough = comm.size * RING_FROM // 4
    for ranks, large in (1, "ring"), (2, "mpi"):
        if comm.size <= ranks:  # one machine
            continue
        own = comm.Dup()
        machines = lambda comm, ranks=ranks: comm.Split(comm.rank // ranks, comm.rank)  # noqa: E731
        with mock.patch("labkit.comm.shared_memory.by_node", machines):
            assert [of_auto(own, n) for n in (enough - 1, enough)] == ["mpi", large]
        own.Free()


def check_emulated_links_and_compression_are_left_to_the_library(comm: MPI.Intracomm) -> None:
    assert of_auto(EmulatedComm(comm, Link(1e12, 1e-6)), LARGE) == "mpi"
    assert of_auto(CountingComm(EmulatedComm(comm, Link(1e12, 1e-6))), LARGE) == "mpi"
    for compress in "float16", "top-k=0.5":
        compressed = Averaging("auto", "mean", compress)
        expected = Averaging("mpi", "mean", compress)
        assert compressed.prepare(comm, LARGE) == (expected, None)
        mine = np.random.default_rng(comm.rank).normal(size=12).astype(np.float32)
        one, other = mine.copy(), mine.copy()
        compressed(comm, one, 1)
        expected(comm, other, 1)
        np.testing.assert_array_equal(one, other)


def check_without_room_in_shared_memory_the_library_averages(comm: MPI.Intracomm) -> None:
    full = lambda nbytes: "too little" if nbytes >= 4 * LARGE else None  # noqa: E731
    with mock.patch("labkit.comm.shared_memory._no_room", full):
        assert of_auto(comm, LARGE) == "mpi"


def check_the_choice_counts_no_message(comm: MPI.Intracomm) -> None:
    counting = CountingComm(comm)
    of_auto(counting, LARGE)
    assert not any(row.sent is not None and row.sent.any() for row in counting.traffic())
    assert chosen(counting, 0) == "mpi"


def check_a_loop_calls_the_library_without_detours(comm: MPI.Intracomm) -> None:
    assert auto.prepare(comm, 1)[0].quick() is library_allreduce
    assert ALGORITHMS["mpi"].prepare(comm, LARGE) == (ALGORITHMS["mpi"], None)
    for other in Averaging("mpi", "mean"), Averaging("mpi", compress="float16"):
        assert other.quick() is other
    gradient = np.full(7, 1.0 + comm.rank, np.float32)
    ALGORITHMS["mpi"].quick()(comm, gradient, 0.5)
    assert (gradient == 0.5 * sum(range(1, comm.size + 1))).all()
