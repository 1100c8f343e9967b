"""A data set that is divided among the ranks: each rank takes its shard, under any scheme, in any epoch."""

from __future__ import annotations

import math

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm.data.once import once_per_node
from labkit.comm.data.scatter import scatter
from labkit.comm.errors import raise_together
from labkit.comm.waiting import sleeping_barrier
from labkit.data import Scheme

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
    (n, outputs) float32; `features`, `outputs` and `labelled` as of a `labkit.data.Dataset`.

    Collective. Raise CollectiveError on every rank if the set cannot be loaded, or not in that shape.
    """

    def __init__(self, comm: MPI.Intracomm, name: str, shape: tuple[int, ...] | None = None) -> None:
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

    def shard(self, scheme: Scheme) -> Samples:
        """Return x and y of this rank's shard of the training samples, in the order of the scheme.

        Collective. Raise CollectiveError on every rank if that fails, for example with more ranks than
        samples.
        """
        if self._stored is None:
            x, y = (self._loaded.x_train, self._loaded.y_train) if self._loaded else (None, None)
            return scatter(self._comm, x, scheme), scatter(self._comm, y, scheme)
        shard, fault = None, None
        try:
            shard = self._stored.take(scheme(len(self._stored), self._comm.rank, self._comm.size))
        except (OSError, ValueError, IndexError) as error:
            fault = str(error)
        raise_together(self._comm, fault)
        assert shard is not None  # otherwise there was a fault
        return shard

    def test(self) -> Samples | None:
        """Return x and y of the test samples on rank 0, None on the other ranks. Not collective.

        They are read from their files only now, so that no rank holds them while it trains.
        """
        if self._comm.rank:
            return None
        if self._loaded:
            return self._loaded.x_test, self._loaded.y_test
        return self._test.take(np.arange(len(self._test)))
