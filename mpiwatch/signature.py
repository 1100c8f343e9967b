"""Check what must be equal on all ranks in a collective, and that a rank's buffers hold what it was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch.flight_recorder import opcodes
from mpiwatch.flight_recorder.opcodes import DTYPES, UNKNOWN
from mpiwatch.message import (
    BLOCK,
    COUNTS,
    TYPES,
    WHOLE,
    Message,
    check_fits,
    is_in_place,
    itemsize,
    nbytes,
    parse,
)

# mpi4py's predefined operations are single objects. Operations that the caller has made are all alike here.
REDUCTIONS = {id(getattr(MPI, name)): number for number, name in enumerate(opcodes.REDUCTIONS)}

# Collective -> what the counts of its buffers are of; the buffer to send comes first.
LAYOUTS = {
    "bcast": (WHOLE,),
    "reduce": (WHOLE, WHOLE),
    "allreduce": (WHOLE, WHOLE),
    "gather": (WHOLE, BLOCK),
    "gatherv": (WHOLE, COUNTS),
    "scatter": (BLOCK, WHOLE),
    "scatterv": (COUNTS, WHOLE),
    "allgather": (WHOLE, BLOCK),
    "allgatherv": (WHOLE, COUNTS),
    "alltoall": (BLOCK, BLOCK),
    "alltoallv": (COUNTS, COUNTS),
    "alltoallw": (TYPES, TYPES),
    "reduce_scatter": (WHOLE, WHOLE),
    "reduce_scatter_block": (BLOCK, WHOLE),
    "scan": (WHOLE, WHOLE),
    "exscan": (WHOLE, WHOLE),
}
TO_ROOT, FROM_ROOT = ("reduce", "gather", "gatherv"), ("scatter", "scatterv")


def check_message(comm: MPI.Comm, call: str, buffer: Any, peer: int, blocks: int = 1) -> None:
    """Raise ValueError for a message that reaches beyond its array; MPI ignores it if `peer` is PROC_NULL."""
    if peer != MPI.PROC_NULL:
        check_fits(call, comm.rank, buffer, BLOCK if blocks > 1 else WHOLE, blocks)


def check_buffers(comm: MPI.Intracomm, call: str, buffers: Sequence[Any], root: int = UNKNOWN) -> None:
    """Raise ValueError if a collective, blocking or not, is given more than one of its buffers holds.

    The rank that has it learns so before other ranks rely on it.
    """
    name = _plain_name(call)
    for index, (buffer, layout) in enumerate(zip(buffers, LAYOUTS.get(name, ()), strict=False)):
        if not isinstance(buffer, (list, tuple)) or (
            comm.rank != root and name in (TO_ROOT if index else FROM_ROOT)  # MPI ignores it
        ):
            continue
        if name == "reduce_scatter_block" and is_in_place(buffers[0]):
            layout = BLOCK  # noqa: PLW2901
        check_fits(call, comm.rank, buffer, layout, 1 if layout == WHOLE else comm.size)


def arguments_of(call: str, arguments: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return a collective's arguments by the names that mpi4py gives them."""
    name = _plain_name(call)
    names: tuple[str, ...] = "sendbuf", "recvbuf", "root" if name in (*TO_ROOT, *FROM_ROOT) else "op"
    if name == "bcast":
        names = "buf", "root"
    elif name.startswith("reduce"):
        more = {"reduce": ("op", "root"), "reduce_scatter": ("recvcounts", "op")}
        names = "sendbuf", "recvbuf", *more.get(name, ("op",))
    return dict(zip(names, arguments, strict=False)) | named


def _plain_name(call: str) -> str:
    """Return `gather` for Gather, Igather and Gather_init."""
    name = call.removesuffix("_init").lower()
    return name[1:] if call[0] == "I" else name


def signature(message: Any, blocks: int = 1, for_each_rank: bool = False) -> tuple[int, int]:
    """Return how many elements a block of a message has, and the number of their dtype; UNKNOWN if unclear.

    `message`: what mpi4py takes, an array or a list such as [array, count, datatype]. A count in it is that
    of one block; an array without a count holds `blocks` of them. `for_each_rank`: the message has a count
    for each rank.

    Raise ValueError for an array that is not contiguous: the rank that has it learns so before other ranks
    rely on it.
    """
    if type(message) is np.ndarray:
        _check_contiguous(message)
        size = message.size
        return (size if blocks == 1 else size // blocks), DTYPES.get(message.dtype.num, UNKNOWN)
    if message is None:
        return 0, UNKNOWN
    try:
        parts = parse(message, for_each_rank)
    except (TypeError, ValueError):  # mpi4py says what is wrong with it
        return UNKNOWN, UNKNOWN
    if isinstance(parts.buffer, np.ndarray):
        _check_contiguous(parts.buffer)
    dtype = _dtype(parts.buffer) if parts.datatype is None else _dtype_of_mpi(parts.datatype)
    count = UNKNOWN if for_each_rank or dtype == UNKNOWN else _count(parts, blocks)
    return count, dtype


def _count(parts: Message, blocks: int) -> int:
    if parts.is_counted:
        return int(parts.count)
    try:
        size = itemsize(parts.buffer) if parts.datatype is None else parts.datatype.Get_size()
        return nbytes(parts.buffer) // size // blocks
    except (TypeError, ValueError, BufferError):
        return UNKNOWN


def check_writable(buffer: Any) -> None:
    """Raise ValueError, on the rank that has it, for an array to receive into that is read-only."""
    if type(buffer) is np.ndarray and not buffer.flags.writeable:
        raise ValueError("expected a writable array to receive into, got a read-only one")


def _check_contiguous(array: np.ndarray) -> None:
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise ValueError(
            f"expected a contiguous array, got strides {array.strides} for shape {array.shape}; "
            "send a copy: np.ascontiguousarray(…)"
        )


def _dtype(buffer: Any) -> int:
    try:
        dtype = buffer.dtype if isinstance(buffer, np.ndarray) else np.dtype(memoryview(buffer).format)
    except (TypeError, ValueError, BufferError):
        return UNKNOWN
    return DTYPES.get(dtype.num, UNKNOWN)


def _dtype_of_mpi(datatype: MPI.Datatype) -> int:
    try:
        return DTYPES.get(np.dtype(datatype.typechar).num, UNKNOWN) if datatype.is_predefined else UNKNOWN
    except (TypeError, ValueError):
        return UNKNOWN
