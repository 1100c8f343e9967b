"""The all-reduce algorithms by name, each as a function that averages a gradient over ranks.

Such a function takes a communicator, this rank's flat gradient and this rank's weight (its fraction of the
samples in the global batch), and leaves the weighted mean in the gradient: the sum of all ranks' gradients,
each times its weight. Shapes: gradient (n,), contiguous, the same n and float dtype on all ranks; the weights
add up to 1. All of them are collective. None of them checks its arguments: `check_before_averaging` does,
once before a loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.aggregate import AGGREGATES, FACTORS, ROBUST
from labkit.comm.averaging.allgather import GATHER, gather_with_samples
from labkit.comm.averaging.allreduce import FIXED, Algorithm
from labkit.comm.averaging.shared_memory import SharedMemory
from labkit.comm.tuning.auto import array_for_auto, auto

ALGORITHMS: dict[str, Algorithm] = {**FIXED, "auto": auto}


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
        if self.aggregate in ROBUST and self.algorithm not in GATHER:
            able = " or ".join(map(repr, GATHER))
            raise ValueError(
                f"{self.algorithm!r} cannot compute the {self.aggregate}: it adds gradients up on their way, "
                f"so no rank ever holds all of them; use {able}"
            )

    def __call__(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        """Leave the aggregate in `gradient`, on every rank."""
        if self.aggregate in FACTORS:
            ALGORITHMS[self.algorithm](comm, gradient, self.factor(weight, comm.size))
            return
        with_samples = gather_with_samples(comm, gradient, weight, GATHER[self.algorithm])
        ROBUST[self.aggregate](with_samples, gradient)

    @property
    def is_linear(self) -> bool:
        """Return whether the aggregate is a sum of gradients, each times a factor."""
        return self.aggregate in FACTORS

    def factor(self, weight: float, p: int) -> float:
        """Return what this rank's gradient is multiplied by; for the median, as for a plain mean."""
        return FACTORS.get(self.aggregate, FACTORS["mean"])(weight, p)


def algorithm(algorithm: str = "mpi", aggregate: str = "weighted") -> Algorithm:
    """Return the averaging function for one of ALGORITHMS and one of AGGREGATES.

    Raise ValueError if there is none: the median and the trimmed mean need an allgather.
    """
    return Averaging(algorithm, aggregate)


def gradient_factor(algorithm: Algorithm, weight: float, p: int) -> float:
    """Return what an algorithm multiplies this rank's gradient by: its weight, unless it says otherwise."""
    return algorithm.factor(weight, p) if isinstance(algorithm, Averaging) else weight


def allocate_gradient(
    algorithm: Algorithm, comm: MPI.Intracomm, n: int, dtype: np.dtype
) -> np.ndarray | None:
    """Return n zeros in the memory in which this algorithm is fastest; None if any will do. Collective."""
    if comm.size == 1:
        return None
    if _inner(algorithm) is auto:
        return array_for_auto(comm, n, dtype)
    memory = in_shared_memory(algorithm)
    return memory.array(comm, n, dtype) if memory is not None else None


def in_shared_memory(algorithm: Algorithm) -> SharedMemory | None:
    """Return the algorithm if it averages in memory that ranks share; otherwise None."""
    inner = _inner(algorithm)
    return inner if isinstance(inner, SharedMemory) else None


def _inner(algorithm: Algorithm) -> Algorithm:
    return ALGORITHMS[algorithm.algorithm] if isinstance(algorithm, Averaging) else algorithm
