"""A data set that all ranks share: every rank takes its share of it, under any scheme, in any epoch."""

from __future__ import annotations

import math

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm.data.once import once_per_node
from labkit.comm.data.scatter import scatter
from labkit.comm.errors import raise_together
from labkit.comm.quiet import sleeping_barrier
from labkit.data import Scheme

Samples = tuple[np.ndarray, np.ndarray]


def fetch(comm: MPI.Intracomm, name: str) -> None:
    """Bring the set "mnist" or "cifar10" into the cache of every rank's node, checked and unpacked.

    One rank of each node fetches, the others wait. Collective. What goes wrong (no connection, a damaged
    file) is a CollectiveError on every rank that says what to do.
    """
    once_per_node(comm, lambda alive: data.fetch(name, alive))


class SharedSet:
    """A set by name, of which `share` gives every rank its share: scattered by rank 0, or read by each rank.

    A set in files is fetched (`fetch`) and read by each rank itself, any other one loaded by rank 0 alone. On
    every rank: `targets` of all training samples, (n,) int64 labels or (n, outputs) float32; `features`,
    `outputs` and `labelled` as of a `labkit.data.Dataset`.

    Collective. A set that cannot be had, or not in that shape, is a CollectiveError on every rank.
    """

    def __init__(self, comm: MPI.Intracomm, name: str, shape: tuple[int, ...] | None = None) -> None:
        self._comm = comm
        self._stored: data.Stored | None = None
        self._loaded: data.Dataset | None = None  # on rank 0
        known: tuple[np.ndarray, int, int] = np.empty(0), 0, 0
        fault = None
        if name in data.SOURCES:
            fetch(comm, name)
        try:
            if name in data.SOURCES:
                self._stored = data.stored(name, "train", shape)
                self._test = data.stored(name, "test", shape)
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
        """Return x and y of this rank's share of the training samples, in the order of the scheme.

        Collective. What goes wrong (more ranks than samples, say) is a CollectiveError on every rank.
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
        assert shard is not None  # or there would have been a fault
        return shard

    def test(self) -> Samples | None:
        """Return x and y of the samples for the test on rank 0, None on the others.

        Read only now, from files: they are no part of what a rank holds while it trains.
        """
        if self._comm.rank:
            return None
        if self._loaded:
            return self._loaded.x_test, self._loaded.y_test
        return self._test.take(np.arange(len(self._test)))
