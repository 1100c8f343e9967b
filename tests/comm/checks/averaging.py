"""Averaging gradients by every algorithm, and the errors that all ranks raise together."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

from labkit.comm import AGGREGATES, ALGORITHMS, Averaging, average, raise_together
from tests.raising import error_on_every_rank

SIZES = (0, 1, 2, 7, 1002, 2 * 32_768 + 6)  # from fewer values than ranks to more than one block


def gradients(p: int, n: int, dtype: type) -> np.ndarray:
    """Return every rank's gradient, the same on all ranks. Shape: (p, n)."""
    return np.random.default_rng([p, n]).normal(size=(p, n)).astype(dtype)


def assert_close(result: np.ndarray, expected: np.ndarray, parts: np.ndarray) -> None:
    """Compare to rounding: relative to the terms, which may almost cancel."""
    rounding = 4 * len(parts) * np.finfo(result.dtype).eps * np.abs(parts).sum(axis=0, dtype=np.float64)
    np.testing.assert_array_less(np.abs(result - expected), rounding + 1e-30)


def check_every_algorithm_gives_the_result_of_one_rank_with_all_gradients(comm: MPI.Intracomm) -> None:
    weights = 2 * np.arange(comm.size) + 1.0
    weights = weights / weights.sum()
    factors = {"sum": np.ones(comm.size), "mean": np.full(comm.size, 1 / comm.size), "weighted": weights}
    for name, function in ALGORITHMS.items():
        for n in SIZES:
            every = gradients(comm.size, n, np.float64 if n % 2 else np.float32)
            mine = every[comm.rank].copy()
            average(comm, mine, weights[comm.rank], function)
            assert mine.dtype == every.dtype
            assert_close(mine, weights @ every.astype(np.float64), every)
        for aggregate, each in factors.items():
            every = gradients(comm.size, 7, np.float32)
            mine = every[comm.rank].copy()
            average(comm, mine, weights[comm.rank], Averaging(name, aggregate))
            assert_close(mine, each @ every.astype(np.float64), every)


def check_all_ranks_end_with_the_same_bits(comm: MPI.Intracomm) -> None:
    for name in (
        "ring",
        "ring-reduce",
        "allgather",
        "gather-scatter",
        "mpi-allgather",
        "shared-memory",
        "root",
        "tree",
    ):
        for n in (2, 7, 33_000):
            mine = gradients(comm.size, n, np.float32)[comm.rank]
            average(comm, mine, comm.rank + 1, ALGORITHMS[name])
            assert len(set(comm.allgather(mine.tobytes()))) == 1, (name, n)


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
    mine = np.full(3, np.nan if comm.rank == 0 else 1, np.float32)
    average(comm, mine, 1, Averaging("allgather", "median"))
    assert np.isnan(mine).all()


def check_a_rank_without_samples_does_not_count(comm: MPI.Intracomm) -> None:
    for averaging in (
        *ALGORITHMS.values(),
        *(Averaging("allgather", name) for name in ("median", "trimmed-mean")),
    ):
        gradient = np.full(3, 8.0 if comm.rank == 0 else 1e6, np.float32)
        average(comm, gradient, 1 if comm.rank == 0 else 0, averaging)
        np.testing.assert_array_equal(gradient, 8)


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


def check_average_changes_the_array_in_place_even_a_slice(comm: MPI.Intracomm) -> None:
    for each in (*ALGORITHMS.values(), Averaging("allgather", "median")):
        whole = np.full(9, comm.rank, np.float64)
        average(comm, whole[3:6], samples=1, algorithm=each)
        np.testing.assert_array_equal(whole[:3], comm.rank)
        np.testing.assert_allclose(whole[3:6], (comm.size - 1) / 2)
        np.testing.assert_array_equal(whole[6:], comm.rank)


def check_a_gradient_that_cannot_be_averaged_is_an_error_on_every_rank(comm: MPI.Intracomm) -> None:
    last = comm.size - 1
    read_only = np.ones(6, np.float32)
    read_only.flags.writeable = False
    for unfit, words in (
        (np.ones(6, np.int64), "float32 or float64, got int64"),
        (np.ones(12, np.float32)[::2], "contiguous"),
        (np.ones((2, 3), np.float32), "(2, 3)"),
        (read_only, "read-only"),
        ([1.0] * 6, "list"),
    ):
        for each in ALGORITHMS.values():
            gradient = unfit if comm.rank == last else np.ones(6, np.float32)
            before = np.array(gradient)
            said = error_on_every_rank(comm, lambda g=gradient, each=each: average(comm, g, 1, each))
            assert f"rank {last}: expected" in said and words in said, said
            np.testing.assert_array_equal(gradient, before)


def check_gradients_of_different_size_or_dtype_are_an_error(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    last = comm.size - 1
    for odd, words in ((np.ones(7, np.float32), "7 values"), (np.ones(6, np.float64), "float64")):
        for each in ALGORITHMS.values():
            gradient = odd if comm.rank == last else np.ones(6, np.float32)
            said = error_on_every_rank(comm, lambda g=gradient, each=each: average(comm, g, 1, each))
            assert f"rank {last}: expected a gradient of 6 values of float32" in said and words in said, said


def check_average_refuses_numbers_of_samples_that_make_no_mean(comm: MPI.Intracomm) -> None:
    for samples in (0, -1, float("nan")):
        gradient = np.ones(2, np.float32)
        said = error_on_every_rank(comm, lambda s=samples, g=gradient: average(comm, g, s))
        assert "samples" in said, said
        np.testing.assert_array_equal(gradient, 1)


def check_an_error_names_the_ranks_that_have_it(comm: MPI.Intracomm) -> None:
    raise_together(comm, None)
    fault = f"odd, {comm.size}" if comm.rank % 2 else None
    odd = list(range(1, comm.size, 2))
    if odd:
        said = error_on_every_rank(comm, lambda: raise_together(comm, fault))
        ranks = "rank 1" if len(odd) == 1 else "ranks " + ", ".join(map(str, odd))
        assert said == f"{ranks}: odd, {comm.size}"
    else:
        raise_together(comm, fault)
