"""A data set that all ranks share: every rank takes its share of it, under any scheme, in any epoch."""

from __future__ import annotations

import math

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm.errors import raise_together
from labkit.comm.once import once_per_node
from labkit.comm.quiet import wait_quietly
from labkit.comm.scatter import scatter
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
    `outputs` and `labelled` as of a `labkit.data.Dataset`. `test`: x and y, on rank 0; None elsewhere.

    Collective. A set that cannot be had, or not in that shape, is a CollectiveError on every rank.
    """

    def __init__(self, comm: MPI.Intracomm, name: str, shape: tuple[int, ...] | None = None) -> None:
        self._comm = comm
        self._stored: data.Stored | None = None
        self._x: np.ndarray | None = None
        self.test: Samples | None = None
        known: tuple[np.ndarray, int, int] = np.empty(0), 0, 0
        fault = None
        if name in data.SOURCES:
            fetch(comm, name)
        try:
            if name in data.SOURCES:
                self._stored = data.stored(name, "train", shape)
                if comm.rank == 0:
                    test = data.stored(name, "test", shape)
                    self.test = test.take(np.arange(len(test)))
                labels = self._stored.labels
                known = labels, math.prod(self._stored.shape), int(labels.max()) + 1
            elif comm.rank == 0:
                loaded = data.load(name, shape)
                self._x, self.test = loaded.x_train, (loaded.x_test, loaded.y_test)
                known = loaded.y_train, loaded.features, loaded.outputs
        except (OSError, ValueError) as error:
            fault = str(error)
        wait_quietly(comm)  # rank 0, which loads the data, needs its core
        raise_together(comm, fault)
        if self._stored is None:
            known = comm.bcast(known)
        self.targets, self.features, self.outputs = known
        self.labelled = bool(np.issubdtype(self.targets.dtype, np.integer))

    def share(self, scheme: Scheme) -> Samples:
        """Return x and y of this rank's share of the training samples, in the order of the scheme.

        Collective. What goes wrong (more ranks than samples, say) is a CollectiveError on every rank.
        """
        if self._stored is None:
            x = scatter(self._comm, self._x, scheme)
            return x, scatter(self._comm, self.targets if self._comm.rank == 0 else None, scheme)
        share, fault = None, None
        try:
            share = self._stored.take(scheme(len(self._stored), self._comm.rank, self._comm.size))
        except (OSError, ValueError, IndexError) as error:
            fault = str(error)
        raise_together(self._comm, fault)
        assert share is not None  # or there would have been a fault
        return share
