"""Scattering a data set: rank 0 holds all of it, and every rank receives its shard."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.data import Scheme, shards
from mpiwatch.errors import CollectiveError


def scatter(comm: MPI.Intracomm, array: np.ndarray | None, scheme: Scheme = shards.contiguous) -> np.ndarray:
    """Return this rank's shard of the array that rank 0 holds, by one Scatterv; other ranks pass None.

    Shapes: array (n, …), any dtype; result (n_rank, …), the samples `scheme(n, rank, size)` in that order.
    Only rank 0 calls the scheme.

    Collective. Raise CollectiveError on every rank if the array or the scheme does not fit, for example if
    there are fewer samples than ranks.
    """
    header: tuple[np.dtype, tuple[int, ...], list[int]] | str = ""
    if comm.rank == 0:
        try:
            ordered, counts = _order(array, scheme, comm.size)
            header = ordered.dtype, ordered.shape[1:], counts
        except (ValueError, IndexError) as error:
            header = str(error)
    header = comm.bcast(header)
    if isinstance(header, str):
        raise CollectiveError(f"rank 0 cannot scatter: {header}")

    dtype, shape, counts = header
    mine = np.empty((counts[comm.rank], *shape), dtype)
    # One MPI element per sample, so that counts stay below 2³¹ and any dtype works.
    row = MPI.BYTE.Create_contiguous(dtype.itemsize * int(np.prod(shape))).Commit()
    try:
        send = [ordered, (counts, None), row] if comm.rank == 0 else None
        comm.Scatterv(send, [mine, counts[comm.rank], row])
    finally:
        row.Free()
    return mine


def _order(array: np.ndarray | None, scheme: Scheme, size: int) -> tuple[np.ndarray, list[int]]:
    """Return the samples in the order of their ranks, and the number of samples of each rank."""
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.hasobject:
        raise ValueError(f"expected a NumPy array of samples, got {type(array).__name__}")
    n = len(array)
    indices = [scheme(n, rank, size) for rank in range(size)]
    order = np.concatenate(indices)
    in_place = np.array_equal(order, np.arange(n))  # then no copy is needed
    return np.ascontiguousarray(array if in_place else array[order]), [len(i) for i in indices]
