"""The all-reduce algorithms: each is one generator, which blocking calls complete and buckets drive.

An algorithm takes a communicator, this rank's flat gradient, the factor of this rank's gradient, and whether
the caller completes it at once (`blocking`). It yields wherever it would wait for another rank (see
`labkit.comm.running.Steps`) and leaves the sum of all ranks' gradients, each times its factor, in the
gradient. Shapes: gradient (n,), contiguous, the same n and float dtype on all ranks. All of them are
collective. None of them checks its arguments: `check_before_averaging` does, once before a loop.

Most of them multiply the gradient by its factor first. Then the mean is a plain sum, one collective on one
buffer. The alternative, a last entry that carries the number of samples, would need a copy of every gradient.

An allgather needs memory of p·n values. A communicator keeps this memory for its next allgather, because new
memory is expensive: the system zeroes each page when it is first written. It is freed with the communicator,
or when a call needs more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm.aggregate import add_up
from labkit.comm.running import Steps, Wait, steps
from labkit.comm.shared_memory import shared_memory  # noqa: F401 (one of the algorithms by name)
from labkit.schedules import ALLREDUCE, chunk_bounds, ring_allgather, ring_reduce_scatter
from mpiwatch.layers import Pending

Algorithm = Callable[[MPI.Intracomm, np.ndarray, float, bool], Steps]


def library_allreduce(comm: MPI.Intracomm, gradient: np.ndarray, factor: float) -> None:
    """Sum by one blocking call of the MPI library, which chooses the algorithm itself."""
    if factor != 1.0:  # a plain sum needs no pass over the memory
        gradient *= gradient.dtype.type(factor)
    comm.Allreduce(MPI.IN_PLACE, gradient)


def mpi(comm: MPI.Intracomm, gradient: np.ndarray, factor: float, blocking: bool) -> Steps:
    """Sum by one call of the MPI library. Its blocking call is faster, and may add in another order."""
    if blocking:
        library_allreduce(comm, gradient, factor)
        return
    if factor != 1.0:
        gradient *= gradient.dtype.type(factor)
    yield from _library(comm, "Iallreduce", comm.Iallreduce(MPI.IN_PLACE, gradient))


def scheduled(name: str, comm: MPI.Intracomm, gradient: np.ndarray, factor: float, blocking: bool) -> Steps:
    """Sum as a schedule says: one of ALLREDUCE, by its name."""
    if factor != 1.0:
        gradient *= gradient.dtype.type(factor)
    return steps(comm, ALLREDUCE[name](comm.size), gradient, blocking=blocking)


def by_allgather(comm: MPI.Intracomm, gradient: np.ndarray, factor: float, blocking: bool) -> Steps:
    """Gather all gradients on every rank by the lab's ring; each rank sums them."""
    rows = yield from gathered("allgather", comm, gradient, factor, blocking)
    add_up(rows, np.ones(comm.size, gradient.dtype), gradient)


def by_mpi_allgather(comm: MPI.Intracomm, gradient: np.ndarray, factor: float, blocking: bool) -> Steps:
    """Gather all gradients on every rank by the MPI library's Allgather; each rank sums them."""
    rows = yield from gathered("mpi-allgather", comm, gradient, factor, blocking)
    add_up(rows, np.ones(comm.size, gradient.dtype), gradient)


GATHER = "allgather", "mpi-allgather"  # the algorithms that give every rank every gradient


def gathered(
    name: str, comm: MPI.Intracomm, values: np.ndarray, factor: float, blocking: bool
) -> Generator[Wait, None, np.ndarray]:
    """Gather the values of all ranks, each multiplied by its factor, on every rank.

    Return them as rows, (p, n). The next call uses the same memory.
    """
    rows = _kept_rows(comm, values)
    np.multiply(values, values.dtype.type(factor), out=rows[comm.rank])
    if name == "allgather":
        yield from steps(comm, ring_allgather(comm.size), rows.reshape(-1), blocking=blocking)
    elif blocking:
        comm.Allgather(MPI.IN_PLACE, rows)
    else:
        yield from _library(comm, "Iallgather", comm.Iallgather(MPI.IN_PLACE, rows))
    return rows


def gather_scatter(comm: MPI.Intracomm, gradient: np.ndarray, factor: float, blocking: bool) -> Steps:
    """Gather all gradients on rank 0, which sums them and scatters copies of the sum, as in report C (2a)."""
    if factor != 1.0:
        gradient *= gradient.dtype.type(factor)
    rows = _kept_rows(comm, gradient) if comm.rank == 0 else None
    if blocking:
        comm.Gather(gradient, rows)
    else:
        yield from _library(comm, "Igather", comm.Igather(gradient, rows))
    if rows is not None:
        add_up(rows, np.ones(comm.size, gradient.dtype), rows)
    if blocking:
        comm.Scatter(rows, gradient)
    else:
        yield from _library(comm, "Iscatter", comm.Iscatter(rows, gradient))


# The algorithms whose two halves sharded training calls apart; each rank has one chunk (`chunk_bounds`).
IN_HALVES = "mpi", "ring"


def reduce_scatter(
    name: str, comm: MPI.Intracomm, gradient: np.ndarray, factor: float, chunk: np.ndarray
) -> Steps:
    """Leave this rank's chunk of the sum of all gradients, each times its factor, in `chunk`.

    The gradient's content is lost.
    """
    if factor != 1.0:
        gradient *= gradient.dtype.type(factor)
    bounds = chunk_bounds(gradient.size, comm.size)
    if name == "mpi":
        counts = np.diff(bounds).tolist()
        yield from _library(comm, "Ireduce_scatter", comm.Ireduce_scatter(gradient, chunk, counts))
    else:
        yield from steps(comm, ring_reduce_scatter(comm.size), gradient)
        chunk[...] = gradient[bounds[comm.rank] : bounds[comm.rank + 1]]


def allgather(name: str, comm: MPI.Intracomm, array: np.ndarray) -> Steps:
    """Give every rank all chunks of the array; each rank begins with its own chunk in place."""
    if name == "mpi":
        counts = np.diff(chunk_bounds(array.size, comm.size)).tolist()
        yield from _library(comm, "Iallgatherv", comm.Iallgatherv(MPI.IN_PLACE, [array, counts]))
    else:
        yield from steps(comm, ring_allgather(comm.size), array)


def _kept_rows(comm: MPI.Intracomm, gradient: np.ndarray) -> np.ndarray:
    """Return the communicator's memory for the gradients of all ranks, (p, n), of any content."""
    nbytes = comm.size * gradient.nbytes
    buffer: Any = comm.Get_attr(_key())
    if buffer is None or buffer.size < nbytes:
        if buffer is not None:
            comm.Delete_attr(_key())  # so that the old memory is freed before more is allocated
        buffer = np.empty(nbytes, np.uint8)
        comm.Set_attr(_key(), buffer)
    return buffer[:nbytes].view(gradient.dtype).reshape(comm.size, gradient.size)


@cache
def _key() -> int:
    """Return the key under which a communicator keeps its memory."""
    return MPI.Comm.Create_keyval()


def _library(comm: MPI.Intracomm, operation: str, request: MPI.Request) -> Steps:
    """Wait for a request of the MPI library, which hides which rank is missing."""
    if not request.Test():
        yield request.Test, lambda: Pending(comm, operation, [], [], request=request)
