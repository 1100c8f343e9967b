"""A data set that lies in files: fetched once for each node, and each rank reads its own share."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm.errors import raise_together
from labkit.comm.once import once_per_node
from labkit.data import Scheme, shards


def fetch(comm: MPI.Intracomm, name: str) -> None:
    """Bring the set "mnist" or "cifar10" into the cache of every rank's node, checked and unpacked.

    One rank of each node fetches, the others wait. Collective. What goes wrong (no connection, a damaged
    file) is a CollectiveError on every rank that says what to do.
    """
    once_per_node(comm, lambda alive: data.fetch(name, alive))


def read_share(
    comm: MPI.Intracomm,
    name: str,
    scheme: Scheme = shards.contiguous,
    shape: tuple[int, ...] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's share of the training samples of "mnist" or "cifar10", read from files by itself.

    Nothing goes through rank 0, and no rank holds more than its share: the counterpart of `scatter`.
    Shapes: x (n_rank, *shape), float32, 0 … 1; y (n_rank,), int64: the samples scheme(n, rank, size) in that
    order, as `labkit.data.load(name, shape)` gives them. Collective: the set is fetched first. What goes
    wrong on any rank is a CollectiveError on every rank.
    """
    fetch(comm, name)
    share, fault = None, None
    try:
        part = data.stored(name, "train", shape)
        share = part.take(scheme(len(part), comm.rank, comm.size))
    except (OSError, ValueError, IndexError) as error:
        fault = str(error)
    raise_together(comm, fault)
    assert share is not None  # or there would have been a fault
    return share
