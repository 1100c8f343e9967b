"""Data sets on many ranks: fetched once per node while other ranks wait, and each rank gets its own shard."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from time import monotonic
from unittest import mock

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import SharedSet, fetch
from labkit.data import fetching
from tests.made_sets_on_ranks import N, made_set
from tests.raising import error_on_every_rank


def check_a_set_in_the_cache_is_unpacked_by_one_rank(comm: MPI.Intracomm) -> None:
    for name in data.SOURCES:
        with made_set(comm, name) as parts:
            with mock.patch.object(fetching, "_unpack", wraps=fetching._unpack) as unpack:
                fetch(comm, name)
                assert data.is_cached(name)
                fetch(comm, name)
            assert comm.allgather(unpack.call_count) == [1] + [0] * (comm.size - 1)
            assert data.open_dataset(name).labels.tolist() == parts["train"][1].tolist()


def check_without_a_connection_every_rank_raises_what_to_do(comm: MPI.Intracomm) -> None:
    with made_set(comm, there=False):
        for call in (lambda: fetch(comm, "mnist"), lambda: SharedSet(comm, "mnist")):
            said = error_on_every_rank(comm, call)
            assert said.startswith("rank 0: data set 'mnist' is not in the cache"), said
            assert "use the embedded data set" in said


def check_each_rank_gets_its_shard_of_the_set(comm: MPI.Intracomm) -> None:
    """From files and from an embedded set."""
    sets = ("mnist", None, 8), ("mnist", (1, 32, 32), None), ("cifar10", (3, 32, 32), None)
    for name, shape, samples in (
        *sets,
        ("digits", (1, 28, 28), 8),
        ("digits", None, None),
        ("linear", None, None),
    ):
        with made_set(comm, name if name in data.SOURCES else "mnist"):
            shared_set, whole = SharedSet(comm, name, shape, samples), data.load(name, shape)
            for about in "features", "outputs", "labelled":
                assert getattr(shared_set, about) == getattr(whole, about)
            np.testing.assert_array_equal(shared_set.targets, whole.y_train[:samples])
            for scheme_name in data.SCHEMES:
                scheme = data.scheme(
                    scheme_name,
                    targets=shared_set.targets,
                    seed=3,
                    epoch=2,
                    speeds=range(1, comm.size + 1),
                )
                x, y = shared_set.shard(scheme)
                mine = scheme(len(whole.y_train[:samples]), comm.rank, comm.size)
                np.testing.assert_array_equal(x, whole.x_train[mine])
                np.testing.assert_array_equal(y, whole.y_train[mine])
            assert_same_test_set(shared_set, whole)


def assert_same_test_set(shared_set: SharedSet, whole: data.Dataset) -> None:
    """Check that every rank gets the test samples in order, a few at a time."""
    size = max(1, len(whole.x_test) // 2 - 1)
    batches = list(shared_set.test_batches(size))
    assert {len(y) for _, y in batches[:-1]} == {size} and 1 <= len(batches[-1][1]) <= size
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), whole.x_test)
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), whole.y_test)


def check_an_impossible_set_or_scheme_is_an_error_on_every_rank(comm: MPI.Intracomm) -> None:
    assert "no data set 'cats'" in error_on_every_rank(comm, lambda: SharedSet(comm, "cats"))
    assert "no shape (5,)" in error_on_every_rank(comm, lambda: SharedSet(comm, "digits", (5,)))
    with made_set(comm):
        assert "no shape (5,)" in error_on_every_rank(comm, lambda: SharedSet(comm, "mnist", (5,)))
        shared_set = SharedSet(comm, "mnist")

        def odd(n: int, rank: int, size: int) -> np.ndarray:
            return np.array([n if rank == size - 1 else 0])

        said = error_on_every_rank(comm, lambda: shared_set.shard(odd))
        assert said.startswith(f"rank {comm.size - 1}: sample {N}: expected 0 … {N - 1}"), said
    if comm.size > 1:
        with made_set(comm, n=comm.size - 1):
            shared_set = SharedSet(comm, "mnist")
            said = error_on_every_rank(comm, lambda: shared_set.shard(data.strided))
            assert f"{comm.size - 1} samples for {comm.size} ranks" in said, said


class TwoNodes(MPI.Intracomm):
    """A communicator that pretends that its even and its odd ranks are on two nodes."""

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Intracomm:
        return self.Split(self.rank % 2, key)


def check_one_rank_of_each_node_does_the_work_before_any_rank_returns(comm: MPI.Intracomm) -> None:
    for nodes, workers in (comm, [0]), (TwoNodes(comm), [0, 1][: comm.size]):
        folder = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))

        def work(name: str, folder=folder) -> None:
            # Rank 0 works alone, since its node may share a disk with the others.
            end = monotonic() + (0.3 if comm.rank == 0 else 0)
            while monotonic() < end:
                assert not (folder / "1").exists()
            assert (comm.rank == 0) != (folder / "0").exists()
            (folder / str(comm.rank)).touch()

        with mock.patch.object(data, "fetch", work):
            fetch(nodes, "mnist")
        done = sorted(int(path.name) for path in folder.iterdir())
        assert done == workers, f"rank {comm.rank} sees the work of {done}, expected {workers}"
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(folder)


def check_a_fault_on_one_node_is_raised_on_all_ranks(comm: MPI.Intracomm) -> None:
    last = min(1, comm.size - 1)  # the last rank that works, with two nodes
    for error, words in (
        (OSError("no room"), "no room"),
        (KeyError("k"), "KeyError: 'k'"),
    ):

        def work(name: str, error=error) -> None:
            if comm.rank == last:
                raise error

        with mock.patch.object(data, "fetch", work):
            said = error_on_every_rank(comm, lambda: fetch(TwoNodes(comm), "mnist"))
        assert said == f"rank {last}: {words}", said
