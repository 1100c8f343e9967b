"""The all-reduce algorithms that do always the same, by name: `auto` chooses among them.

Most of them multiply the gradient by its weight first. Then the mean is a plain sum, one collective on one
buffer. The alternative, a last entry that carries the number of samples, would need a copy of every gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.allgather import allgather, mpi_allgather
from labkit.comm.averaging.shared_memory import shared_memory
from labkit.comm.running.executor import run
from labkit.schedules import ALLREDUCE

Algorithm = Callable[[MPI.Intracomm, np.ndarray, float], None]


def mpi_allreduce(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Average in place by one Allreduce of the MPI library, which chooses the algorithm itself."""
    if weight != 1.0:  # a plain sum needs no pass over the memory
        gradient *= gradient.dtype.type(weight)
    comm.Allreduce(MPI.IN_PLACE, gradient)


def _scheduled(name: str) -> Algorithm:
    def algorithm(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        if weight != 1.0:
            gradient *= gradient.dtype.type(weight)
        run(comm, ALLREDUCE[name](comm.size), gradient)

    algorithm.__name__ = name.replace("-", "_")
    algorithm.__doc__ = f"Average in place by the schedule {name!r}."
    return algorithm


# By name: the MPI library's own algorithms, the lab's schedules, and shared memory, which sends no messages.
FIXED: dict[str, Algorithm] = {
    "mpi": mpi_allreduce,
    "mpi-allgather": mpi_allgather,
    "allgather": allgather,
    **{name: _scheduled(name) for name in ALLREDUCE},
    "shared-memory": shared_memory,
}
