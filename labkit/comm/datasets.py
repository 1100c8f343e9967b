"""Data sets for every rank: fetched once per node, then scattered by rank 0 or read in shards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm.shared_memory import by_node
from labkit.data import Scheme, shards
from mpiwatch.waiting import CollectiveError, raise_together, sleeping_barrier

Samples = tuple[np.ndarray, np.ndarray]
Result = TypeVar("Result")


def fetch(comm: MPI.Intracomm, name: str) -> None:
    """Fetch the set "mnist" or "cifar10" into the cache of every node, checked and unpacked.

    One rank of each node fetches while the others wait. Collective. Raise CollectiveError on every rank if
    that fails (no connection, a damaged file); the message says what to do.
    """
    once_per_node(comm, lambda: data.fetch(name))


class SharedSet:
    """A data set by name, whose method `shard` returns this rank's shard.

    Files are fetched (`fetch`), and each rank reads its own shard from them. Any other set is loaded by
    rank 0, which scatters it. On every rank: `targets` of all training samples, (n,) int64 labels or
    (n, outputs) float32; `features`, `outputs` and `labelled` as of a `labkit.data.Dataset`. Given `samples`,
    the training set is only the first so many samples, or all if there are fewer.

    Collective. Raise CollectiveError on every rank if the set cannot be loaded, or not in that shape.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        name: str,
        shape: tuple[int, ...] | None = None,
        samples: int | None = None,
    ) -> None:
        self._comm, self.name, self._samples = comm, name, samples
        self._stored: data.FileDataset | None = None
        self._loaded: data.Dataset | None = None  # on rank 0
        if name in data.SOURCES:
            fetch(comm, name)

        def open_or_load() -> tuple[np.ndarray, int, int]:
            if name in data.SOURCES:
                self._stored = data.open_dataset(name, "train", shape)
                self._test = data.open_dataset(name, "test", shape)
                labels = self._stored.labels
                return labels, math.prod(self._stored.shape), int(labels.max()) + 1
            if comm.rank:
                return np.empty(0), 0, 0
            self._loaded = loaded = data.load(name, shape)
            return loaded.y_train, loaded.features, loaded.outputs

        known = all_or_none(comm, open_or_load, takes_long=True)
        self.targets, self.features, self.outputs = known if self._stored else comm.bcast(known)
        self.labelled = bool(np.issubdtype(self.targets.dtype, np.integer))
        self.targets = self.targets[:samples]
        if self._stored:
            self._stored = replace(self._stored, labels=self._stored.labels[:samples])

    def shard(self, scheme: Scheme) -> Samples:
        """Return x and y of this rank's shard of the training samples, in the order of the scheme.

        Collective. Raise CollectiveError on every rank if that fails, for example with more ranks than
        samples.
        """
        stored, comm = self._stored, self._comm
        if stored is not None:
            return all_or_none(comm, lambda: stored.take(scheme(len(stored), comm.rank, comm.size)))
        first, whole = slice(self._samples), self._loaded
        x, y = (whole.x_train[first], whole.y_train[first]) if whole else (None, None)
        return scatter(comm, x, scheme), scatter(comm, y, scheme)

    def test_batches(self, size: int) -> Iterator[Samples]:
        """Yield x and y of the test samples, `size` at a time, to every rank.

        No rank holds more than one batch of them, except rank 0, which has loaded a set that is in no file.
        Collective: all ranks take all batches. Raise CollectiveError on every rank if one cannot be read.
        """
        if self._stored is None:
            loaded = self._loaded
            parts = range(0, len(loaded.y_test), size) if loaded else None
            for start in self._comm.bcast(parts):
                part = slice(start, start + size)
                yield self._comm.bcast((loaded.x_test[part], loaded.y_test[part]) if loaded else None)
            return
        for start in range(0, len(self._test), size):
            samples = np.arange(start, min(start + size, len(self._test)))
            yield all_or_none(self._comm, lambda samples=samples: self._test.take(samples))  # type: ignore[misc]


def all_or_none(comm: MPI.Intracomm, function: Callable[[], Result], takes_long: bool = False) -> Result:
    """Return what `function` returns; raise CollectiveError on every rank if it fails on any. Collective.

    It fails by an OSError, ValueError or IndexError. If it takes long on some ranks, the others wait asleep,
    as these need their cores.
    """
    results, fault = list[Result](), None
    try:
        results.append(function())
    except CollectiveError:
        raise  # every rank has it already
    except (OSError, ValueError, IndexError) as error:
        fault = str(error)
    if takes_long:
        sleeping_barrier(comm)
    raise_together(comm, fault)
    return results[0]


def scatter(comm: MPI.Intracomm, array: np.ndarray | None, scheme: Scheme = shards.contiguous) -> np.ndarray:
    """Return this rank's shard of the array that rank 0 holds, by one Scatterv; other ranks pass None.

    Shapes: array (n, …), any dtype; result (n_rank, …), the samples `scheme(n, rank, size)` in that order.
    Only rank 0 calls the scheme.

    Collective. Raise CollectiveError on every rank if the array or the scheme does not fit, for example if
    there are fewer samples than ranks.
    """
    header: tuple[np.dtype, tuple[int, ...], list[int]] | str = ""
    if comm.rank == 0:
        try:
            ordered, counts = _order(array, scheme, comm.size)
            header = ordered.dtype, ordered.shape[1:], counts
        except (ValueError, IndexError) as error:
            header = str(error)
    header = comm.bcast(header)
    if isinstance(header, str):
        raise CollectiveError(f"rank 0 cannot scatter: {header}")

    dtype, shape, counts = header
    mine = np.empty((counts[comm.rank], *shape), dtype)
    # One MPI element per sample, so that counts stay below 2³¹ and any dtype works.
    row = MPI.BYTE.Create_contiguous(dtype.itemsize * int(np.prod(shape))).Commit()
    try:
        send = [ordered, (counts, None), row] if comm.rank == 0 else None
        comm.Scatterv(send, [mine, counts[comm.rank], row])
    finally:
        row.Free()
    return mine


def _order(array: np.ndarray | None, scheme: Scheme, size: int) -> tuple[np.ndarray, list[int]]:
    """Return the samples in the order of their ranks, and the number of samples of each rank."""
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.hasobject:
        raise ValueError(f"expected a NumPy array of samples, got {type(array).__name__}")
    n = len(array)
    indices = [scheme(n, rank, size) for rank in range(size)]
    order = np.concatenate(indices)
    in_place = np.array_equal(order, np.arange(n))  # then no copy is needed
    return np.ascontiguousarray(array if in_place else array[order]), [len(i) for i in indices]


def once_per_node(comm: MPI.Intracomm, work: Callable[[], object]) -> None:
    """Call `work` on one rank of each node; return on every rank when all calls are over.

    Rank 0 works first, then the first rank of every other node, all at the same time: where nodes share a
    disk, these find the work done. The other ranks wait asleep, for as long as the work takes; a rank that
    never calls this is reported before the work begins.

    Collective. Raise CollectiveError on every rank if `work` raised an exception.
    """
    node = by_node(comm)
    first = node.rank == 0
    node.Free()
    for works in comm.rank == 0, first and comm.rank > 0:
        fault = None
        if works:
            try:
                work()
            except Exception as error:
                # The messages of the usual errors need no type in front.
                usual = isinstance(error, OSError | ValueError)
                fault = str(error) if usual else f"{type(error).__name__}: {error}"
        sleeping_barrier(MPI.Intracomm(comm))  # not watched: the work may take longer than any deadline
        raise_together(comm, fault)
