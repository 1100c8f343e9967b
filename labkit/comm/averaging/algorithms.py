"""The all-reduce algorithms by name, each as a function that averages a gradient over ranks.

Such a function takes a communicator, this rank's flat gradient and this rank's weight (its fraction of the
samples in the global batch), and leaves the weighted mean in the gradient: the sum of all ranks' gradients,
each times its weight. Shapes: gradient (n,), contiguous, the same n and float dtype on all ranks; the weights
add up to 1. All of them are collective. None of them checks its arguments: `check_before_averaging` does,
once before a loop.

Most of them multiply the gradient by its weight first. Then the mean is a plain sum, one collective on one
buffer. The alternative, a last entry that carries the number of samples, would need a copy of every gradient.
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


def mpi_allreduce(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Average in place by one Allreduce of the MPI library, which chooses the algorithm itself."""
    gradient *= gradient.dtype.type(weight)
    comm.Allreduce(MPI.IN_PLACE, gradient)


def allgather(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Send every gradient to every rank, then average in place. Needs memory for p gradients."""
    rows, weights = gather_gradients(comm, gradient, weight)
    add_up(rows, weights.astype(gradient.dtype), gradient)


def gather_gradients(
    comm: MPI.Intracomm, gradient: np.ndarray, weight: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of all ranks, (p, n), and their weights, (p,), by a ring allgather. Collective."""
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


# By name: the MPI library's own algorithm, the lab's schedules, and shared memory, which sends no messages.
ALGORITHMS: dict[str, Algorithm] = {
    "mpi": mpi_allreduce,
    "allgather": allgather,
    **{name: _scheduled(name) for name in ALLREDUCE},
    "shared-memory": shared_memory,
}


@dataclass(frozen=True)
class Averaging:
    """An all-reduce algorithm together with what it computes: one of ALGORITHMS and one of AGGREGATES.

    The sum and the means multiply each rank's gradient by a factor: 1, 1/p (also for a rank without samples)
    or its weight. The median and the trimmed mean use no weights: every rank counts the same, except that a
    rank without samples has no gradient and is left out.
    """

    algorithm: str
    aggregate: str

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"expected an all-reduce algorithm, one of {', '.join(ALGORITHMS)}, got {self.algorithm!r}"
            )
        if self.aggregate not in AGGREGATES:
            raise ValueError(f"expected an aggregate, one of {', '.join(AGGREGATES)}, got {self.aggregate!r}")
        if self.aggregate in ROBUST and self.algorithm != "allgather":
            raise ValueError(
                f"{self.algorithm!r} cannot compute the {self.aggregate}: it adds gradients up on their way, "
                "so no rank ever holds all of them; use 'allgather'"
            )

    def __call__(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        """Leave the aggregate in `gradient`, on every rank."""
        if self.aggregate in FACTORS:
            ALGORITHMS[self.algorithm](comm, gradient, self.factor(weight, comm.size))
            return
        rows, weights = gather_gradients(comm, gradient, weight)
        with_samples = [row for row, its_weight in zip(rows, weights, strict=True) if its_weight > 0]
        ROBUST[self.aggregate](with_samples, gradient)

    @property
    def is_linear(self) -> bool:
        """Whether the aggregate is a sum of gradients, each times a factor."""
        return self.aggregate in FACTORS

    def factor(self, weight: float, p: int) -> float:
        """Return what this rank's gradient is multiplied by; for the median, as for a plain mean."""
        return FACTORS.get(self.aggregate, FACTORS["mean"])(weight, p)


def algorithm(algorithm: str = "mpi", aggregate: str = "weighted") -> Algorithm:
    """Return the averaging function for one of ALGORITHMS and one of AGGREGATES.

    Raise ValueError if there is none: the median and the trimmed mean need algorithm="allgather".
    """
    return Averaging(algorithm, aggregate)


def gradient_factor(algorithm: Algorithm, weight: float, p: int) -> float:
    """Return what an algorithm multiplies this rank's gradient by: its weight, unless it says otherwise."""
    return algorithm.factor(weight, p) if isinstance(algorithm, Averaging) else weight


def allocate_gradient(
    algorithm: Algorithm, comm: MPI.Intracomm, n: int, dtype: np.dtype
) -> np.ndarray | None:
    """Return n zeros in the memory in which this algorithm is fastest; None if any will do. Collective."""
    inner = ALGORITHMS[algorithm.algorithm] if isinstance(algorithm, Averaging) else algorithm
    return inner.array(comm, n, dtype) if isinstance(inner, SharedMemory) and comm.size > 1 else None
