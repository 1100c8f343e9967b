"""Averaging gradients by every algorithm, at once or driven, and the errors that all ranks raise together."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import AGGREGATES, ALGORITHMS, Averaging, CountingComm, average, raise_together
from labkit.comm.compression import Float16, TopK, error_feedback, parse
from labkit.comm.running import Steps, complete
from mpiwatch.communicators import resume, watch
from mpiwatch.waiting import HangError, yield_core
from tests.raising import error_on_every_rank

# On all ranks.
SAME_BITS = {
    "ring",
    "ring-reduce",
    "allgather",
    "gather-scatter",
    "mpi-allgather",
    "shared-memory",
    "root",
    "tree",
}
SIZES = (0, 1, 2, 7, 1002, 2 * 32_768 + 6)  # from fewer values than ranks to more than one block


def gradients(p: int, n: int, dtype: type) -> np.ndarray:
    """Return every rank's gradient, the same on all ranks. Shape: (p, n)."""
    return np.random.default_rng([p, n]).normal(size=(p, n)).astype(dtype)


def assert_close(result: np.ndarray, expected: np.ndarray, parts: np.ndarray) -> None:
    """Compare to rounding: relative to the terms, which may almost cancel."""
    rounding = 4 * len(parts) * np.finfo(result.dtype).eps * np.abs(parts).sum(axis=0, dtype=np.float64)
    np.testing.assert_array_less(np.abs(result - expected), rounding + 1e-30)


def drive(steps: Steps) -> None:
    """Let it go on as far as it can, again and again, until it has ended."""
    for over, _ in steps:
        while not over():
            yield_core()


def check_every_algorithm_gives_the_result_of_one_rank_with_all_gradients(comm: MPI.Intracomm) -> None:
    weights = 2 * np.arange(comm.size) + 1.0
    weights = weights / weights.sum()
    factors = {"sum": np.ones(comm.size), "mean": np.full(comm.size, 1 / comm.size), "weighted": weights}
    for name, function in ALGORITHMS.items():
        for n in SIZES:
            every = gradients(comm.size, n, np.float64 if n % 2 else np.float32)
            mine, driven = every[comm.rank].copy(), every[comm.rank].copy()
            average(comm, mine, weights[comm.rank], function)
            assert mine.dtype == every.dtype
            assert_close(mine, weights @ every.astype(np.float64), every)
            assert name not in SAME_BITS or len(set(comm.allgather(mine.tobytes()))) == 1, (name, n)
            drive(function.steps(comm, driven, weights[comm.rank]))
            if name in ("mpi", "auto"):  # Iallreduce may add in another order
                assert_close(driven, mine, every)
            else:
                np.testing.assert_array_equal(driven, mine, err_msg=name)
        for aggregate, each in factors.items():
            every = gradients(comm.size, 7, np.float32)
            mine = every[comm.rank].copy()
            average(comm, mine, weights[comm.rank], Averaging(name, aggregate))
            assert_close(mine, each @ every.astype(np.float64), every)


def check_the_median_and_the_trimmed_mean_are_those_of_all_gradients(comm: MPI.Intracomm) -> None:
    for n, name in product(SIZES, ("allgather", "mpi-allgather")):
        every = gradients(comm.size, n, np.float64 if n % 2 else np.float32)
        every[-1] *= 1e6  # a faulty rank
        mine = every[comm.rank].copy()
        average(comm, mine, comm.rank + 1, Averaging(name, "median"))
        np.testing.assert_allclose(mine, np.median(every, axis=0), rtol=1e-6)
        mine = every[comm.rank].copy()
        average(comm, mine, comm.rank + 1, Averaging(name, "trimmed-mean"))
        kept = np.sort(every, axis=0)[1:-1] if comm.size > 2 else every
        assert_close(mine, kept.mean(axis=0, dtype=np.float64), kept)
        driven = every[comm.rank].copy()
        drive(Averaging(name, "trimmed-mean").steps(comm, driven, 1 / comm.size))
        np.testing.assert_array_equal(driven, mine)
    mine = np.full(3, np.nan if comm.rank == 0 else 1, np.float32)
    average(comm, mine, 1, Averaging("allgather", "median"))
    assert np.isnan(mine).all()


def check_a_rank_without_samples_does_not_count_and_a_slice_is_averaged_in_place(comm: MPI.Intracomm) -> None:
    robust = (Averaging("allgather", name) for name in ("median", "trimmed-mean"))
    for averaging in (*ALGORITHMS.values(), *robust):
        whole = np.full(9, 8.0 if comm.rank == 0 else 1e6, np.float32)
        before = whole.copy()
        average(comm, whole[3:6], 1 if comm.rank == 0 else 0, averaging)
        np.testing.assert_array_equal(whole[3:6], 8)
        np.testing.assert_array_equal(np.delete(whole, [3, 4, 5]), before[:6])


def check_an_algorithm_that_cannot_compute_a_median_says_why(comm: MPI.Intracomm) -> None:
    for name in ALGORITHMS:
        for aggregate in AGGREGATES:
            if aggregate not in ("median", "trimmed-mean") or name in ("allgather", "mpi-allgather"):
                Averaging(name, aggregate)
                continue
            with pytest.raises(ValueError, match="use 'allgather' or 'mpi-allgather'") as error:
                Averaging(name, aggregate)
            assert all(words in str(error.value) for words in (name, aggregate, "adds gradients up"))
    for names, words in (("star", "mean"), "one of mpi, mpi-allgather"), (("ring", "mode"), "one of sum"):
        with pytest.raises(ValueError, match=words):
            Averaging(*names)


def check_a_missing_rank_is_reported_and_the_ranks_are_in_step_again(comm: MPI.Intracomm) -> None:
    world, last = watch(), comm.rank == comm.size - 1
    before, world.deadline_s = world.deadline_s, 0.5
    for name, said in ("ring", "ring_allreduce"), ("shared-memory", "shared-memory"), ("mpi", "Iallreduce"):
        own = world.Dup() if name != "mpi" or MPI.get_vendor()[0] != "Open MPI" else None
        if own is None or comm.size == 1:
            continue  # Open MPI's next collective would be out of step
        complete(ALGORITHMS[name].steps(own, np.ones(10), 1.0))
        if not last:
            second = ALGORITHMS[name].steps(own, np.ones(10), 1.0)
            with pytest.raises(HangError, match=said) as error:
                complete(second)
            assert next(second, None) is None and f"rank {comm.size - 1} " in str(error.value), error.value
        MPI.COMM_WORLD.Barrier()
        resume()
        MPI.COMM_WORLD.Barrier()
        if name == "shared-memory":
            array = np.ones(10)
            average(own, array, 1.0, Averaging(name, "sum"))
            assert (array == comm.size).all()
    world.deadline_s = before


COMPRESSIONS = "float16", "top-k", "top-k=0.3"
COMPRESSED = [Averaging(name, "weighted", each) for each in COMPRESSIONS for name in parse(each).algorithms]


def check_compression_sends_everything_sooner_or_later(comm: MPI.Intracomm) -> None:
    """What is averaged and what all ranks have left add up to the mean of all gradients; rank 0 can rest."""
    weights = np.arange(comm.size) + float(comm.size == 1)
    weights /= weights.sum()
    for each, n in product(COMPRESSED, (0, 1, 7, 1002)):
        every = gradients(comm.size, n, np.float64 if n % 2 else np.float32)
        residual, total = np.zeros_like(every[0]), np.zeros(n)
        for step in range(3):
            mine = every[comm.rank] * every.dtype.type(1e-5 if step == 1 else step)
            replace(each, residual=residual)(comm, mine, weights[comm.rank])
            assert mine.dtype == every.dtype and len(set(comm.allgather(mine.tobytes()))) == 1, each
            total += mine
        left = comm.allreduce(residual.astype(np.float64))
        expected = (2 + 1e-5) * weights @ every.astype(np.float64)
        # float16 also rounds partial sums, which no residual contains.
        lost = 2e-3 if each.compress == "float16" else 1e-6
        np.testing.assert_allclose(total + left, expected, rtol=0, atol=10 * lost, err_msg=str(each))


def check_compression_hides_no_overflow(comm: MPI.Intracomm) -> None:
    """Values that float16 cannot hold arrive in several steps; NaN and infinity arrive at once."""
    for each in COMPRESSED:
        residual, total = np.zeros(3, np.float32), np.zeros(3)
        summed = replace(each, aggregate="sum", residual=residual)
        for step in range(3):
            mine = np.array([1e5, -1e5, 1.0] if step == 0 else [0] * 3, np.float32)
            summed(comm, mine, 1.0)
            total += mine
        left, every = comm.allreduce(residual.astype(np.float64)), comm.size * np.array([1e5, -1e5, 1])
        np.testing.assert_allclose(total + left, every, rtol=1e-3)
        if each.compress == "float16":  # each step sends as much as float16 allows
            np.testing.assert_allclose(total[:2], [3 * 512, -3 * 512], rtol=1e-3)
        for odd in np.nan, np.inf, -np.inf:
            mine = np.full(300, odd if comm.rank == comm.size - 1 else 2, np.float32)
            mine[:200] = 1
            replace(summed, residual=None)(comm, mine, 1.0)
            assert not np.isfinite(mine[200:]).all() and np.isfinite(mine[:200]).all(), (each, odd)


def check_compressed_messages_are_counted_as_they_are_sent(comm: MPI.Intracomm) -> None:
    p, n, counting = comm.size, 1200, CountingComm(comm)
    for each, nbytes in (
        ("none", 2 * n * 4),
        ("float16", 2 * n * 2),
        ("top-k", p * n // 100 * 8),
    ):
        counting.reset()
        Averaging("ring", "mean", each)(counting, np.ones(n, np.float32), 1.0)
        sent = sum(row.sent.sum() for row in counting.traffic() if row.sent is not None)
        assert sent == (p - 1) * nbytes, each


def check_error_feedback_is_a_pure_function(comm: MPI.Intracomm) -> None:
    gradient, residual = np.array([3.0, -9, 1e-9, 5]), np.array([0, 1.0, 0, 5])
    before = gradient.copy(), residual.copy()
    message, left = error_feedback(gradient, residual, TopK(0.5))
    which, values = TopK(0.5).unpack(message, left.dtype)
    assert dict(zip(which.tolist(), values.tolist(), strict=True)) == {1: -8, 3: 10}
    np.testing.assert_array_equal(left, [3, 0, 1e-9, 0])
    assert TopK(0.01).pack(gradient).nbytes == 8 + 4  # at least one value, with its index
    message, left = error_feedback(gradient, residual, Float16(4))
    np.testing.assert_array_equal(message, np.array([192, -512, 2.0**-24, 640], np.float16))
    np.testing.assert_array_equal(left, [0, 0, 1e-9 - 2.0**-30, 0])
    np.testing.assert_array_equal((gradient, residual), before)


def check_what_cannot_be_compressed_is_refused(comm: MPI.Intracomm) -> None:
    for text in "float", "top-k=0", "top-k=1.1", "top-k=nan", "top-k=", "top-k:0.1", "float16=2", "":
        with pytest.raises(ValueError, match=r"none, float16, top-k or top-k=FRACTION .* got "):
            Averaging("ring", "mean", text)
    for name, aggregate, compress in (
        ("allgather", "median", "float16"),
        ("mpi-allgather", "trimmed-mean", "top-k"),
        *((name, "mean", "top-k=0.5") for name in ("tree", "root", "gather-scatter", "recursive-doubling")),
        *((name, "weighted", each) for name in ("shared-memory",) for each in ("float16", "top-k")),
    ):
        with pytest.raises(ValueError, match="expected a sum or a mean by mpi, ") as error:
            Averaging(name, aggregate, compress)
        assert f"got {aggregate} by {name!r}" in str(error.value) and repr(compress) in str(error.value)


def check_a_gradient_that_cannot_be_averaged_is_an_error_on_every_rank(comm: MPI.Intracomm) -> None:
    last = comm.size - 1
    read_only = np.ones(6, np.float32)
    read_only.flags.writeable = False
    unfit = [
        (np.ones(6, np.int64), "float32 or float64, got int64"),
        (np.ones(12, np.float32)[::2], "contiguous"),
        (np.ones((2, 3), np.float32), "(2, 3)"),
        (read_only, "read-only"),
        ([1.0] * 6, "list"),
    ]
    if comm.size > 1:
        unfit += [
            (np.ones(7, np.float32), "a gradient of 6 values of float32 as on rank 0, got 7 values"),
            (
                np.ones(6, np.float64),
                "a gradient of 6 values of float32 as on rank 0, got 6 values of float64",
            ),
        ]
    for odd, words in unfit:
        gradient = odd if comm.rank == last else np.ones(6, np.float32)
        before = np.array(gradient)
        said = error_on_every_rank(comm, lambda g=gradient: average(comm, g, 1))
        assert f"rank {last}: expected" in said and words in said, said
        np.testing.assert_array_equal(gradient, before)
    for samples in (0, -1, float("nan"), None):
        gradient = np.ones(2, np.float32)
        said = error_on_every_rank(comm, lambda s=samples, g=gradient: average(comm, g, s))
        assert "samples" in said, said
        np.testing.assert_array_equal(gradient, 1)


def check_an_error_names_the_ranks_that_have_it(comm: MPI.Intracomm) -> None:
    raise_together(comm, None)
    if odd := list(range(1, comm.size, 2)):
        fault = f"odd, {comm.size}" if comm.rank % 2 else None
        said = error_on_every_rank(comm, lambda: raise_together(comm, fault))
        ranks = "rank 1" if len(odd) == 1 else "ranks " + ", ".join(map(str, odd))
        assert said == f"{ranks}: odd, {comm.size}"
