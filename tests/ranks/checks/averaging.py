"""Averaging gradients, and the errors that all ranks raise together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from labkit.comm import WAYS, CollectiveError, average, raise_together


def error_on_every_rank(comm: MPI.Intracomm, call: Callable[[], object]) -> str:
    """Check that the call raises one CollectiveError on all ranks, and leaves them in step."""
    try:
        call()
    except CollectiveError as error:
        said = str(error)
    else:
        raise AssertionError(f"rank {comm.rank}: no error")
    assert comm.allgather(said) == [said] * comm.size
    assert comm.allreduce(comm.rank) == sum(range(comm.size))
    return said


def check_average_is_the_mean_weighted_by_batch_size(comm: MPI.Intracomm) -> None:
    for way in WAYS.values():
        for n in (0, 1, 2, 7, 1001):
            for dtype in (np.float32, np.float64):
                pattern = np.arange(1, n + 1, dtype=dtype)
                gradient = (comm.rank + 1) * pattern
                average(comm, gradient, weight=2 * comm.rank + 1, way=way)
                weights = [2 * r + 1 for r in range(comm.size)]
                mean = sum(w * (r + 1) for r, w in enumerate(weights)) / sum(weights)
                np.testing.assert_allclose(gradient, mean * pattern, rtol=4 * comm.size * np.finfo(dtype).eps)
                assert gradient.dtype == dtype


def check_average_of_equal_weights_is_the_plain_mean(comm: MPI.Intracomm) -> None:
    gradient = np.full(5, comm.rank, np.float32)
    average(comm, gradient, weight=64)
    np.testing.assert_allclose(gradient, (comm.size - 1) / 2, rtol=1e-6)


def check_average_without_samples_does_not_count(comm: MPI.Intracomm) -> None:
    gradient = np.full(3, 8.0 if comm.rank == 0 else 1e6, np.float32)
    average(comm, gradient, weight=1 if comm.rank == 0 else 0)
    np.testing.assert_array_equal(gradient, 8)


def check_average_changes_the_array_in_place_even_a_slice(comm: MPI.Intracomm) -> None:
    whole = np.full(9, comm.rank, np.float64)
    average(comm, whole[3:6], weight=1)
    np.testing.assert_array_equal(whole[:3], comm.rank)
    np.testing.assert_allclose(whole[3:6], (comm.size - 1) / 2)
    np.testing.assert_array_equal(whole[6:], comm.rank)


def check_average_refuses_an_unfit_gradient_on_every_rank(comm: MPI.Intracomm) -> None:
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
        gradient = unfit if comm.rank == last else np.ones(6, np.float32)
        before = np.array(gradient)
        said = error_on_every_rank(comm, lambda gradient=gradient: average(comm, gradient, 1))
        assert f"rank {last}: expected" in said and words in said, said
        np.testing.assert_array_equal(gradient, before)


def check_average_refuses_gradients_that_differ(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    last = comm.size - 1
    for odd, words in ((np.ones(7, np.float32), "7 values"), (np.ones(6, np.float64), "float64")):
        gradient = odd if comm.rank == last else np.ones(6, np.float32)
        said = error_on_every_rank(comm, lambda gradient=gradient: average(comm, gradient, 1))
        assert f"rank {last}: expected a gradient of 6 values of float32" in said and words in said, said


def check_average_refuses_weights_that_make_no_mean(comm: MPI.Intracomm) -> None:
    for weight in (0, -1, float("nan")):
        gradient = np.ones(2, np.float32)
        said = error_on_every_rank(comm, lambda w=weight, g=gradient: average(comm, g, w))
        assert "weight" in said, said
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
