"""Data sets on many ranks: fetched once per node, and each rank gets its own shard."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import SharedSet, fetch, scatter
from tests.made_sets_on_ranks import N, made_set
from tests.raising import error_on_every_rank


def check_a_set_in_the_cache_is_unpacked_by_one_rank(comm: MPI.Intracomm) -> None:
    for name in data.SOURCES:
        with made_set(comm, name) as parts:
            unpacked = []
            source = data.SOURCES[name]

            def unpack(folder: Path, source=source, unpacked=unpacked) -> list[Path]:
                unpacked.append(comm.rank)
                return source.unpack(folder)

            counting = data.Source(**{**vars(source), "unpack": unpack})
            with mock.patch.dict(data.SOURCES, {name: counting}):
                fetch(comm, name)
                assert data.is_cached(name)
                fetch(comm, name)
            assert comm.allgather(unpacked) == [[0]] + [[]] * (comm.size - 1)
            assert data.open_dataset(name).labels.tolist() == parts["train"][1].tolist()


def check_without_a_connection_every_rank_raises_what_to_do(comm: MPI.Intracomm) -> None:
    with made_set(comm, there=False):
        for call in (lambda: fetch(comm, "mnist"), lambda: SharedSet(comm, "mnist")):
            said = error_on_every_rank(comm, call)
            assert said.startswith("rank 0: data set 'mnist' is not in the cache"), said
            assert "use the embedded data set" in said


def check_each_rank_reads_what_rank_0_would_have_scattered(comm: MPI.Intracomm) -> None:
    """From files and from an embedded set."""
    sets = ("mnist", None), ("mnist", (1, 32, 32)), ("cifar10", (3, 32, 32)), ("digits", (1, 28, 28))
    for name, shape in (*sets, ("digits", None), ("linear", None)):
        with made_set(comm, name if name in data.SOURCES else "mnist"):
            shared_set, whole = SharedSet(comm, name, shape), data.load(name, shape)
            for about in "features", "outputs", "labelled":
                assert getattr(shared_set, about) == getattr(whole, about)
            np.testing.assert_array_equal(shared_set.targets, whole.y_train)
            for scheme_name in data.SCHEMES:
                scheme = data.scheme(
                    scheme_name,
                    targets=shared_set.targets,
                    seed=3,
                    epoch=2,
                    speeds=range(1, comm.size + 1),
                )
                x, y = shared_set.shard(scheme)
                rank_0 = comm.rank == 0
                np.testing.assert_array_equal(x, scatter(comm, whole.x_train if rank_0 else None, scheme))
                np.testing.assert_array_equal(y, scatter(comm, whole.y_train if rank_0 else None, scheme))
            assert_same_test_set(shared_set, whole)


def assert_same_test_set(shared_set: SharedSet, whole: data.Dataset) -> None:
    """Check that every rank gets the test samples in order, a few at a time."""
    size = max(1, len(whole.x_test) // 2 - 1)
    batches = list(shared_set.test_batches(size))
    assert {len(y) for _, y in batches[:-1]} == {size} and 1 <= len(batches[-1][1]) <= size
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), whole.x_test)
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), whole.y_test)


def check_a_set_of_the_first_samples_only(comm: MPI.Intracomm) -> None:
    for name in "mnist", "digits":
        with made_set(comm):
            shared_set, whole = SharedSet(comm, name, (1, 28, 28), 8), data.load(name, (1, 28, 28))
            x, y = shared_set.shard(data.strided)
            np.testing.assert_array_equal(x, whole.x_train[comm.rank : 8 : comm.size])
            np.testing.assert_array_equal(y, whole.y_train[comm.rank : 8 : comm.size])
            assert len(shared_set.targets) == 8 and shared_set.outputs == 10
            assert_same_test_set(shared_set, whole)


def check_an_impossible_set_or_scheme_is_an_error_on_every_rank(comm: MPI.Intracomm) -> None:
    assert "no data set 'cats'" in error_on_every_rank(comm, lambda: SharedSet(comm, "cats"))
    assert "no shape (5,)" in error_on_every_rank(comm, lambda: SharedSet(comm, "digits", (5,)))
    with made_set(comm):
        assert "no shape (5,)" in error_on_every_rank(comm, lambda: SharedSet(comm, "mnist", (5,)))
        shared_set = SharedSet(comm, "mnist")

        def odd(n: int, rank: int, size: int) -> np.ndarray:
            return np.array([n if rank == size - 1 else 0])

        said = error_on_every_rank(comm, lambda: shared_set.shard(odd))
        assert said == f"rank {comm.size - 1}: sample {N}: expected 0 … {N - 1}", said
    if comm.size > 1:
        with made_set(comm, n=comm.size - 1):
            shared_set = SharedSet(comm, "mnist")
            said = error_on_every_rank(comm, lambda: shared_set.shard(data.strided))
            assert f"{comm.size - 1} samples for {comm.size} ranks" in said, said
