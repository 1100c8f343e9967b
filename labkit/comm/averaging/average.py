"""Averaging a gradient over ranks.

Each rank's gradient is the mean over its own samples, so the mean over ranks has to weight each gradient by
its number of samples. Then p ranks with a part of the batch each compute the same as one rank with all of it.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.allreduce import Algorithm, mpi_allreduce
from mpiwatch.errors import raise_faults


def average(
    comm: MPI.Intracomm, gradient: np.ndarray, samples: float, algorithm: Algorithm = mpi_allreduce
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
    gathered = comm.allgather((fault, size_and_dtype, samples))
    faults, sizes_and_dtypes, all_samples = zip(*gathered, strict=True)
    raise_faults(faults)
    expected = sizes_and_dtypes[0]
    raise_faults(
        [
            None if got == expected else f"expected a gradient of {expected} as on rank 0, got {got}"
            for got in sizes_and_dtypes
        ]
    )
    total = float(sum(all_samples))
    raise_faults(
        ["expected samples on at least one rank, got 0 on every rank" if total == 0 else None] * comm.size
    )
    return total


def _fault(gradient: np.ndarray, samples: float) -> str | None:
    """Return why this gradient cannot be averaged in place, or None if it can."""
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
    if not (np.isfinite(samples) and samples >= 0):
        return f"expected 0 or more samples, got {samples}"
    return None
