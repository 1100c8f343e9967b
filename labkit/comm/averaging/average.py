"""Averaging a gradient over ranks.

The mean of means has to be weighted: each rank's gradient is the mean over its own batch, so it counts as
much as its batch is large. Then p ranks with a share of the batch each equal one rank with all of it.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.algorithms import Algorithm, allreduce
from labkit.comm.errors import raise_faults


def average(
    comm: MPI.Intracomm, gradient: np.ndarray, weight: float, algorithm: Algorithm = allreduce
) -> None:
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank.

    `weight` is the number of samples that this rank's gradient is the mean of (any unit, as long as all
    ranks use the same one). Shapes: gradient (n,), contiguous, writable, float32 or float64, alike on all
    ranks. Collective. A gradient that is not fit is a CollectiveError on every rank, and all gradients stay
    untouched.
    """
    total = agree(comm, gradient, weight)
    algorithm(comm, gradient, weight / total)


def agree(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> float:
    """Check that the gradients of all ranks can be averaged, and return the sum of their weights.

    Collective; costs one small allgather. A CollectiveError on every rank names the ranks at fault, what was
    expected and what came.
    """
    fault = _fault(gradient, weight)
    kind = "" if fault else f"{gradient.size} values of {gradient.dtype}"
    said = comm.allgather((fault, kind, weight))
    faults, kinds, weights = zip(*said, strict=True)
    raise_faults(faults)
    raise_faults(
        [None if k == kinds[0] else f"expected a gradient of {kinds[0]} as on rank 0, got {k}" for k in kinds]
    )
    total = float(sum(weights))
    raise_faults(
        ["expected a weight above 0 on some rank, got 0 on every rank" if total == 0 else None] * comm.size
    )
    return total


def _fault(gradient: np.ndarray, weight: float) -> str | None:
    """Return what makes this gradient unfit to be averaged in place, if anything."""
    if not isinstance(gradient, np.ndarray):
        return f"expected the gradient as a NumPy array, got {type(gradient).__name__}"
    if gradient.dtype not in (np.float32, np.float64):
        return f"expected a gradient of float32 or float64, got {gradient.dtype}"
    if gradient.ndim != 1 or not gradient.flags.c_contiguous:
        return (
            "expected a flat, contiguous gradient, got "
            f"shape {gradient.shape}, {'' if gradient.flags.c_contiguous else 'not '}contiguous"
        )
    if not gradient.flags.writeable:
        return "expected a writable gradient, got a read-only one"
    if not (np.isfinite(weight) and weight >= 0):
        return f"expected a weight of 0 or more samples, got {weight}"
    return None
