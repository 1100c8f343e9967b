"""The ways to average a gradient over ranks, by name.

A way takes a communicator, this rank's flat gradient and this rank's share of all the samples (its batch size
/ that of all ranks together), and leaves the weighted mean in place: the sum of all gradients, each times its
share. Shapes: gradient (n,), contiguous, the same n and float dtype on all ranks; the shares add up to 1. All
are collective, and check nothing: `agree` does that, once before a loop.

A reduction scales its gradient by its share first: then the mean is a plain sum, one collective on one
buffer. The alternative, sending the batch size along in a slot behind the gradient, would have every gradient
copied in order to be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.aggregate import AGGREGATES, FACTORS, ROBUST, add_up
from labkit.comm.averaging.shared_memory import SharedMemory, shared_memory
from labkit.comm.running.executor import run
from labkit.schedules import ALLREDUCE, ring_allgather

Algorithm = Callable[[MPI.Intracomm, np.ndarray, float], None]


def allreduce(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Average in place by one Allreduce, the MPI library's own."""
    gradient *= gradient.dtype.type(weight)
    comm.Allreduce(MPI.IN_PLACE, gradient)


def allgather(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Average in place after every rank has got every gradient: takes p times the memory of one."""
    rows, weights = contributions(comm, gradient, weight)
    add_up(rows, weights.astype(gradient.dtype), gradient)


def contributions(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of all ranks (p, n) and their shares (p,), by a ring allgather. Collective."""
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    rows[comm.rank] = gradient
    weights = np.empty(comm.size)
    weights[comm.rank] = weight
    for array in weights, rows.reshape(-1):
        run(comm, ring_allgather(comm.size), array)
    return rows, weights


def _scheduled(name: str) -> Algorithm:
    def algorithm(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        gradient *= gradient.dtype.type(weight)
        run(comm, ALLREDUCE[name](comm.size), gradient)

    algorithm.__name__ = name.replace("-", "_")
    algorithm.__doc__ = f"Average in place by the schedule {name!r}."
    return algorithm


# What has the signature of a way, by name: the MPI library's own, ours by schedule, ours without messages.
ALGORITHMS: dict[str, Algorithm] = {
    "mpi": allreduce,
    "allgather": allgather,
    **{name: _scheduled(name) for name in ALLREDUCE},
    "shared-memory": shared_memory,
}


@dataclass(frozen=True)
class Averaging:
    """A way by the names of two choices: how the gradients come together, and what is made of them.

    Sum and means give each rank's gradient a factor: 1, 1/p (whatever its batch, even an empty one) or its
    share of the samples. The median and the trimmed mean have nothing that a share could weigh: each rank
    counts alike, and a rank without samples, which has no gradient to tell, is left out.
    """

    algorithm: str
    aggregate: str

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"expected a way to average, one of {', '.join(ALGORITHMS)}, got {self.algorithm!r}"
            )
        if self.aggregate not in AGGREGATES:
            raise ValueError(f"expected an aggregate, one of {', '.join(AGGREGATES)}, got {self.aggregate!r}")
        if self.aggregate in ROBUST and self.algorithm != "allgather":
            raise ValueError(
                f"{self.algorithm!r} cannot make the {self.aggregate}: it adds up on the way, so no rank "
                "ever holds the single contributions that are needed for it; use 'allgather'"
            )

    def __call__(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        """Leave what is asked for in place, on every rank."""
        if self.aggregate in FACTORS:
            ALGORITHMS[self.algorithm](comm, gradient, self.factor(weight, comm.size))
            return
        rows, weights = contributions(comm, gradient, weight)
        told = [row for row, its in zip(rows, weights, strict=True) if its > 0]
        ROBUST[self.aggregate](told, gradient)

    def factor(self, weight: float, p: int) -> float:
        """Return what this rank's gradient is multiplied by; for the median that of a plain mean."""
        return FACTORS.get(self.aggregate, FACTORS["mean"])(weight, p)


def algorithm(algorithm: str = "mpi", aggregate: str = "weighted") -> Algorithm:
    """Return the way to average of these names, one of ALGORITHMS and one of AGGREGATES.

    A ValueError if there is no such way: the median and the trimmed mean need algorithm="allgather".
    """
    return Averaging(algorithm, aggregate)


def factor(algorithm: Algorithm, weight: float, p: int) -> float:
    """Return what a way multiplies this rank's gradient by: its share, unless the way says otherwise."""
    return algorithm.factor(weight, p) if isinstance(algorithm, Averaging) else weight


def memory(algorithm: Algorithm, comm: MPI.Intracomm, n: int, dtype: np.dtype) -> np.ndarray | None:
    """Return n zeros where this way has a gradient best; None if it does not matter. Collective."""
    inner = ALGORITHMS[algorithm.algorithm] if isinstance(algorithm, Averaging) else algorithm
    return inner.array(comm, n, dtype) if isinstance(inner, SharedMemory) and comm.size > 1 else None
