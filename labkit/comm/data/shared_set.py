"""A data set that is divided among the ranks: each rank takes its shard, under any scheme, in any epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm.data.once import once_per_node
from labkit.comm.data.scatter import scatter
from labkit.data import Scheme
from mpiwatch.errors import raise_together
from mpiwatch.waiting import sleeping_barrier

Samples = tuple[np.ndarray, np.ndarray]


def fetch(comm: MPI.Intracomm, name: str) -> None:
    """Fetch the set "mnist" or "cifar10" into the cache of every node, checked and unpacked.

    One rank of each node fetches while the others wait. Collective. Raise CollectiveError on every rank if
    that fails (no connection, a damaged file); the message says what to do.
    """
    once_per_node(comm, lambda heartbeat: data.fetch(name, heartbeat))


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
        self._comm, self.name = comm, name
        self._stored: data.FileDataset | None = None
        self._loaded: data.Dataset | None = None  # on rank 0
        known: tuple[np.ndarray, int, int] = np.empty(0), 0, 0
        fault = None
        if name in data.SOURCES:
            fetch(comm, name)
        try:
            if name in data.SOURCES:
                self._stored = data.open_dataset(name, "train", shape)
                self._test = data.open_dataset(name, "test", shape)
                labels = self._stored.labels
                known = labels, math.prod(self._stored.shape), int(labels.max()) + 1
            elif comm.rank == 0:
                self._loaded = loaded = data.load(name, shape)
                known = loaded.y_train, loaded.features, loaded.outputs
        except (OSError, ValueError) as error:
            fault = str(error)
        sleeping_barrier(comm)  # rank 0, which loads the data, needs its core
        raise_together(comm, fault)
        if self._stored is None:
            known = comm.bcast(known)
        self.targets, self.features, self.outputs = known
        self.labelled = bool(np.issubdtype(self.targets.dtype, np.integer))
        self.targets = self.targets[:samples]
        if self._stored:
            self._stored = replace(self._stored, labels=self._stored.labels[:samples])
        self._samples = samples

    def shard(self, scheme: Scheme) -> Samples:
        """Return x and y of this rank's shard of the training samples, in the order of the scheme.

        Collective. Raise CollectiveError on every rank if that fails, for example with more ranks than
        samples.
        """
        if self._stored is None:
            first = slice(self._samples)
            x, y = (
                (self._loaded.x_train[first], self._loaded.y_train[first]) if self._loaded else (None, None)
            )
            return scatter(self._comm, x, scheme), scatter(self._comm, y, scheme)
        shard, fault = None, None
        try:
            shard = self._stored.take(scheme(len(self._stored), self._comm.rank, self._comm.size))
        except (OSError, ValueError, IndexError) as error:
            fault = str(error)
        raise_together(self._comm, fault)
        assert shard is not None  # otherwise there was a fault
        return shard

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
            batch, fault = None, None
            try:
                batch = self._test.take(np.arange(start, min(start + size, len(self._test))))
            except (OSError, ValueError) as error:
                fault = str(error)
            raise_together(self._comm, fault)
            assert batch is not None  # otherwise there was a fault
            yield batch
