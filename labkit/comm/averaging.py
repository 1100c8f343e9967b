"""Averaging gradients over ranks.

Each rank's gradient is the mean over its own samples, so the mean over ranks has to weight each gradient by
its number of samples. Then p ranks with a part of the batch each compute the same as one rank with all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from mpi4py import MPI

from labkit.algorithms import AUTO, NAMES
from labkit.comm.aggregate import AGGREGATES, FACTORS, ROBUST, robust_mean
from labkit.comm.algorithms import GATHER, Algorithm, gathered, library_allreduce
from labkit.comm.auto import LIBRARY, chosen
from labkit.comm.by_name import FIXED
from labkit.comm.compression import error_feedback, parse
from labkit.comm.running import Steps, complete
from labkit.comm.shared_memory import NAME as SHARED_MEMORY
from labkit.comm.shared_memory import shared_array
from mpiwatch.layers import CollectiveError, raise_faults

# Whatever averages a gradient in place, given this rank's weight: an `Averaging`, or a function of your own.
Averages = Callable[[MPI.Intracomm, np.ndarray, float], None]


@dataclass(frozen=True)
class Averaging:
    """An all-reduce algorithm together with what it computes: one of ALGORITHMS and one of AGGREGATES.

    Call it with a communicator, this rank's flat gradient and this rank's weight (its fraction of the samples
    in the global batch): it leaves the aggregate in the gradient, on every rank. Collective.

    The sum and the means multiply each rank's gradient by a factor: 1, 1/p (also for a rank without samples)
    or its weight. The median and the trimmed mean use no weights: every rank counts the same, except that a
    rank without samples has no gradient and is left out; they need an algorithm that gathers all gradients.

    `compress` is "none", or how messages are compressed (`labkit.comm.compression`): "float16", "top-k" or
    "top-k=0.05". Each call updates `residual`, like the gradient; without one, what is not sent is lost.

    "auto" averages by the MPI library's own algorithm until `prepare` has chosen another one: shared memory,
    in which the gradient then lies, or the ring (labkit/comm/auto.py).
    """

    algorithm: str = "mpi"
    aggregate: str = "weighted"
    compress: str = "none"
    residual: np.ndarray | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.algorithm not in NAMES:
            raise ValueError(
                f"expected an all-reduce algorithm, one of {', '.join(NAMES)}, got {self.algorithm!r}"
            )
        if self.aggregate not in AGGREGATES:
            raise ValueError(f"expected an aggregate, one of {', '.join(AGGREGATES)}, got {self.aggregate!r}")
        if self.aggregate in ROBUST and self.algorithm not in GATHER:
            able = " or ".join(map(repr, GATHER))
            raise ValueError(
                f"{self.algorithm!r} cannot compute the {self.aggregate}: it adds gradients up on their way, "
                f"so no rank ever holds all of them; use {able}"
            )
        if self.compress == "none":
            return
        names = (*parse(self.compress).algorithms, AUTO)
        if self.aggregate in ROBUST or self.algorithm not in names:
            raise ValueError(
                f"expected a sum or a mean by {', '.join(names)} with the compression {self.compress!r}, "
                f"got {self.aggregate} by {self.algorithm!r}"
            )

    def __call__(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        complete(self._weighted_algorithm(comm, gradient, weight, True))

    def steps(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> Steps:
        """Return a generator that averages; it yields wherever it would wait (see `labkit.comm.running`).

        Until it has ended, leave the gradient alone, and start no other one on this communicator.
        """
        return self._weighted_algorithm(comm, gradient, weight, False)

    @cached_property
    def _weighted_algorithm(self) -> Algorithm:
        """Return the algorithm that takes a weight instead of a factor; found once, to call it fast."""
        if self.compress != "none":
            return self._compressed
        if self.aggregate in ROBUST:
            return self._robust
        if self.aggregate == "weighted":
            return FIXED[self._fixed]
        return self._linear

    @property
    def _fixed(self) -> str:
        """Return the algorithm for a gradient in any memory."""
        return "mpi" if self.algorithm == AUTO else self.algorithm

    def _linear(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float, blocking: bool) -> Steps:
        return FIXED[self._fixed](comm, gradient, self.factor(weight, comm.size), blocking)

    def _robust(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float, blocking: bool) -> Steps:
        own_weight = np.array([weight])
        weights = (yield from gathered(self.algorithm, comm, own_weight, 1.0, blocking)).copy()
        rows = yield from gathered(self.algorithm, comm, gradient, 1.0, blocking)
        counted = [row for row, of_row in zip(rows, weights, strict=True) if of_row > 0]
        robust_mean(self.aggregate, counted, gradient)

    def _compressed(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float, blocking: bool) -> Steps:
        """Average with error feedback after weighting: so a rank without samples can send its residual."""
        compressor = parse(self.compress, comm.size)
        residual = np.zeros_like(gradient) if self.residual is None else self.residual
        gradient *= gradient.dtype.type(self.factor(weight, comm.size))
        message, residual[...] = error_feedback(gradient, residual, compressor)
        if self._fixed in compressor.gathered:
            name = compressor.gathered[self._fixed]
            messages = yield from gathered(name, comm, message, 1.0, blocking)
        else:
            yield from FIXED[self._fixed](comm, message, 1.0, blocking)
            messages = message[None]
        gradient[...] = 0
        for received in messages:  # in the same order on all ranks, so that their sums have the same bits
            which, values = compressor.unpack(received, gradient.dtype)
            gradient[which] += values

    def factor(self, weight: float, p: int) -> float:
        """Return what this rank's gradient is multiplied by; for the median, as for a plain mean."""
        return FACTORS.get(self.aggregate, FACTORS["mean"])(weight, p)

    def prepare(
        self,
        comm: MPI.Intracomm,
        n: int,
        dtype: type | np.dtype = np.float32,
        at_once: int | None = None,
    ) -> tuple[Averaging, np.ndarray | None]:
        """Return what averages gradients of n values in a loop, and the memory in which they have to lie.

        The memory is n zeros; it is None if any memory will do. `at_once` is how many of the values are
        averaged at once (those of a bucket), by default all. Here `auto` is decided, so what this returns has
        another algorithm; if there is too little shared memory, that is the MPI library's. Collective.
        """
        if self.algorithm != AUTO:
            shared = self.algorithm == SHARED_MEMORY and comm.size > 1
            return self, shared_array(comm, n, dtype) if shared else None
        nbytes = (n if at_once is None else at_once) * np.dtype(dtype).itemsize
        name = LIBRARY if self.compress != "none" else chosen(comm, nbytes)
        if name != SHARED_MEMORY:
            return replace(self, algorithm=name), None
        try:
            return replace(self, algorithm=name), shared_array(comm, n, dtype)
        except CollectiveError:
            return replace(self, algorithm=LIBRARY), None

    def quick(self) -> Averages:
        """Return a function that does the same, for a loop.

        A call by the MPI library takes a few microseconds, and anything that Python looks up on the way takes
        a noticeable part of that.
        """
        return library_allreduce if self == Averaging("mpi") else self


# By name: the weighted mean by each algorithm.
ALGORITHMS = {name: Averaging(name) for name in NAMES}


def average(
    comm: MPI.Intracomm, gradient: np.ndarray, samples: float, algorithm: Averages = ALGORITHMS["mpi"]
) -> None:
    """Leave the mean of all ranks' gradients, weighted by their numbers of samples, in `gradient`.

    `samples` is the number of samples that this rank's gradient is the mean of; other units work if all ranks
    use the same one. Shapes: gradient (n,), contiguous, writable, float32 or float64, the same n and dtype on
    all ranks.

    Collective. Raise CollectiveError on every rank, before any gradient changes, if a gradient cannot be
    averaged.
    """
    total = check_before_averaging(comm, gradient, samples)
    algorithm(comm, gradient, samples / total)


def check_before_averaging(comm: MPI.Intracomm, gradient: np.ndarray, samples: float) -> float:
    """Check that the gradients of all ranks can be averaged; return the samples of all ranks together.

    Collective; costs one small allgather. Raise CollectiveError on every rank if a gradient cannot be
    averaged; the message names the rank, what was expected and what it got.
    """
    fault = _fault(gradient, samples)
    size_and_dtype = "" if fault else f"{gradient.size} values of {gradient.dtype}"
    faults, sizes_and_dtypes, all_samples = zip(
        *comm.allgather((fault, size_and_dtype, samples)), strict=True
    )
    raise_faults(faults)
    expected, total = sizes_and_dtypes[0], float(sum(all_samples))
    if total == 0:
        raise CollectiveError("expected samples on at least one rank, got 0 on every rank")
    raise_faults(
        [
            None if got == expected else f"expected a gradient of {expected} as on rank 0, got {got}"
            for got in sizes_and_dtypes
        ]
    )
    return total


def _fault(gradient: np.ndarray, samples: float) -> str | None:
    """Return why this gradient cannot be averaged in place, or None if it can."""
    if not isinstance(gradient, np.ndarray):
        return f"expected the gradient as a NumPy array, got {type(gradient).__name__}"
    if gradient.dtype not in (np.float32, np.float64):
        return f"expected a gradient of float32 or float64, got {gradient.dtype}"
    if gradient.ndim != 1 or not gradient.flags.c_contiguous:
        contiguous = "contiguous" if gradient.flags.c_contiguous else "not contiguous"
        return f"expected a flat, contiguous gradient, got shape {gradient.shape}, {contiguous}"
    if not gradient.flags.writeable:
        return "expected a writable gradient, got a read-only one"
    is_number = np.ndim(samples) == 0 and np.asarray(samples).dtype.kind in "biuf"
    if not is_number or not (np.isfinite(samples) and samples >= 0):
        return f"expected 0 or more samples, got {samples!r}"
    return None
