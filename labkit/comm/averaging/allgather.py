"""Averaging by allgather: every rank gets every gradient. By the lab's ring, or by the MPI library's own.

The gradients arrive in memory of p·n values. A communicator keeps this memory for its next allgather, because
new memory is expensive: the system zeroes each page when it is first written. It is freed with the
communicator, or when a call needs more. So after a call, p·n values stay allocated on each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.aggregate import add_up
from labkit.comm.running.executor import run
from labkit.schedules import ring_allgather


def gather_by_ring(comm: MPI.Intracomm, rows: np.ndarray) -> None:
    """Fill `rows`, (p, n), with each rank's own row, by the schedule of a ring allgather. Collective."""
    run(comm, ring_allgather(comm.size), rows.reshape(-1))


def gather_by_mpi(comm: MPI.Intracomm, rows: np.ndarray) -> None:
    """Fill `rows`, (p, n), with each rank's own row, by the MPI library's own Allgather. Collective."""
    comm.Allgather(MPI.IN_PLACE, rows)


# How every rank gets every gradient, by the name of the all-reduce algorithm.
GATHER: dict[str, Callable[[MPI.Intracomm, np.ndarray], None]] = {
    "allgather": gather_by_ring,
    "mpi-allgather": gather_by_mpi,
}


def allgather(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Send every gradient to every rank along a ring, then average in place. Keeps memory for p gradients."""
    _average(comm, gradient, weight, gather_by_ring)


def mpi_allgather(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Average in place by the MPI library's own Allgather. Keeps memory for p gradients."""
    _average(comm, gradient, weight, gather_by_mpi)


def gather_with_samples(
    comm: MPI.Intracomm,
    gradient: np.ndarray,
    weight: float,
    gather: Callable[[MPI.Intracomm, np.ndarray], None],
) -> list[np.ndarray]:
    """Return the gradients of all ranks whose weight is above 0. Shapes: m × (n,). Collective.

    They lie in the communicator's kept memory, so they are valid until its next allgather.
    """
    weights = np.empty((comm.size, 1))
    weights[comm.rank] = weight
    gather(comm, weights)
    rows = kept_rows(comm, gradient)
    rows[comm.rank] = gradient
    gather(comm, rows)
    return [row for row, its_weight in zip(rows, weights, strict=True) if its_weight > 0]


def _average(
    comm: MPI.Intracomm,
    gradient: np.ndarray,
    weight: float,
    gather: Callable[[MPI.Intracomm, np.ndarray], None],
) -> None:
    rows = kept_rows(comm, gradient)
    np.multiply(gradient, gradient.dtype.type(weight), out=rows[comm.rank])
    gather(comm, rows)
    add_up(rows, np.ones(comm.size, gradient.dtype), gradient)


def kept_rows(comm: MPI.Intracomm, gradient: np.ndarray) -> np.ndarray:
    """Return memory for the gradients of all ranks, (p, n), of any content."""
    nbytes = comm.size * gradient.nbytes
    kept: Any = comm.Get_attr(_key())
    if kept is None or kept.size < nbytes:
        if kept is not None:
            comm.Delete_attr(_key())  # so that the old memory is freed before more is allocated
        kept = np.empty(nbytes, np.uint8)
        comm.Set_attr(_key(), kept)
    return kept[:nbytes].view(gradient.dtype).reshape(comm.size, gradient.size)


@cache
def _key() -> int:
    """Return the key under which a communicator keeps its memory."""
    return MPI.Comm.Create_keyval()
