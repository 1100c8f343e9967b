"""Data sets for every rank: fetched once per node, then read in shards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm.shared_memory import by_node
from labkit.data import Scheme
from mpiwatch.layers import CollectiveError, raise_together, sleeping_barrier

Samples = tuple[np.ndarray, np.ndarray]
Result = TypeVar("Result")


class _Loaded(NamedTuple):
    """One split of a data set in memory, with what `labkit.data.FileDataset` has of one in a file."""

    x: np.ndarray
    labels: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    def take(self, samples: np.ndarray) -> Samples:
        return self.x[samples], self.labels[samples]


class SharedSet:
    """A data set by name, whose method `shard` returns this rank's shard.

    Files are fetched (`fetch`), and each rank reads its own shard from them; a rank keeps a set that is in no
    file as a whole. On every rank: `targets` of all training samples, (n,) int64 labels or (n, outputs)
    float32; `features`, `outputs` and `labelled` as of a `labkit.data.Dataset`. Given `samples`, the training
    set is only the first so many samples, or all if there are fewer.

    Collective. Raise CollectiveError on every rank if the set cannot be loaded, or not in that shape.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        name: str,
        shape: tuple[int, ...] | None = None,
        samples: int | None = None,
    ) -> None:
        self._comm = comm
        self.name = name
        if name in data.SOURCES:
            fetch(comm, name)

        def splits() -> list[data.FileDataset | _Loaded]:
            if name in data.SOURCES:
                return [data.open_dataset(name, split, shape) for split in ("train", "test")]
            whole = data.load(name, shape)
            return [_Loaded(whole.x_train, whole.y_train), _Loaded(whole.x_test, whole.y_test)]

        self._train, self._test = all_or_none(comm, splits)
        labels = self._train.labels
        self.labelled = bool(np.issubdtype(labels.dtype, np.integer))
        self.features = math.prod(self._train.shape)
        self.outputs = int(labels.max()) + 1 if self.labelled else labels.shape[1]
        self.targets = labels[:samples]

    def shard(self, scheme: Scheme) -> Samples:
        """Return x and y of this rank's shard of the training samples, in the order of the scheme.

        Collective. Raise CollectiveError on every rank if that fails, for example with more ranks than
        samples.
        """
        comm, n = self._comm, len(self.targets)
        return all_or_none(comm, lambda: self._train.take(scheme(n, comm.rank, comm.size)))

    def test_batches(self, size: int) -> Iterator[Samples]:
        """Yield x and y of the test samples, `size` at a time, to every rank.

        Collective: all ranks take all batches. Raise CollectiveError on every rank if one cannot be read.
        """
        n = len(self._test.labels)
        for start in range(0, n, size):
            samples = np.arange(start, min(start + size, n))
            yield all_or_none(self._comm, lambda samples=samples: self._test.take(samples))  # type: ignore[misc]


def all_or_none(comm: MPI.Intracomm, function: Callable[[], Result]) -> Result:
    """Return what `function` returns; raise CollectiveError on every rank if it fails on any. Collective.

    It fails by an OSError, ValueError or IndexError.
    """
    results, fault = list[Result](), None
    try:
        results.append(function())
    except CollectiveError:
        raise  # every rank has it already
    except (OSError, ValueError, IndexError) as error:
        fault = str(error)
    raise_together(comm, fault)
    return results[0]


def fetch(comm: MPI.Intracomm, name: str) -> None:
    """Fetch the set "mnist" or "cifar10" into the cache of every node, checked and unpacked.

    Rank 0 fetches first, then the first rank of every other node, all at the same time: where nodes share a
    disk, these find the work done. The other ranks wait asleep, for as long as the work takes.

    Collective. Raise CollectiveError on every rank if that fails (no connection, a damaged file); the message
    says what to do.
    """
    node = by_node(comm)
    first = node.rank == 0
    node.Free()
    for fetches in comm.rank == 0, first and comm.rank > 0:
        fault = None
        if fetches:
            try:
                data.fetch(name)
            except Exception as error:
                # The messages of the usual errors need no type in front.
                usual = isinstance(error, OSError | ValueError)
                fault = str(error) if usual else f"{type(error).__name__}: {error}"
        sleeping_barrier(MPI.Intracomm(comm))  # not watched: fetching may take longer than any deadline
        raise_together(comm, fault)
