"""The parser of mpi4py's message arguments: arrays, other buffers, and lists such as [buffer, count, type].

mpi4py takes [buffer, type], [buffer, count], [buffer, count, type], [buffer, (count, displacement), type] and
[buffer, count, displacement, type]. In collectives with counts for each rank (Allgatherv and the like), count
and displacement are sequences. A datatype is an `MPI.Datatype` or its code, such as "d".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib


class Message(NamedTuple):
    """The parts of a message argument; None stands for what it leaves out."""

    buffer: Any
    count: Any = None  # elements, or those for each rank
    displacement: Any = None  # elements from the start of the buffer, or those for each rank
    datatype: MPI.Datatype | None = None

    @property
    def is_counted(self) -> bool:
        """Return whether it says how many elements are sent, as one number."""
        return isinstance(self.count, (int, np.integer))


def parse(message: Any, for_each_rank: bool = False) -> Message:
    """Return the parts of a message argument; a ValueError if mpi4py takes no such list.

    `for_each_rank`: it is of a collective in which a list holds the counts of all ranks, and not a count and
    a displacement.
    """
    if not isinstance(message, (list, tuple)):
        return Message(message)
    pair = tuple if for_each_rank else (tuple, list)
    displacement = datatype = None
    if len(message) == 2:
        buffer, count = message
        if isinstance(count, (MPI.Datatype, str)):
            count, datatype = None, count
    elif len(message) == 3:
        buffer, count, datatype = message
    elif len(message) == 4:
        buffer, count, displacement, datatype = message
    else:
        raise ValueError(
            f"expected a message of 2 to 4 items, such as [buffer, count, type], got {len(message)}"
        )
    if len(message) < 4 and isinstance(count, pair):
        count, displacement = count
    return Message(buffer, count, displacement, _datatype(datatype))


def _datatype(datatype: MPI.Datatype | str | None) -> MPI.Datatype | None:
    return MPI.Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype


def is_in_place(sendbuf: Any) -> bool:
    """Tell whether a collective's argument says that the values to send are in the other one."""
    return sendbuf is None or isinstance(sendbuf, MPI.InPlaceType)


def flat(message: Any) -> np.ndarray | None:
    """Return the values of a message as a flat array of a NumPy dtype, on the same memory.

    None if it has no such form: a derived datatype, counts for each rank, or a buffer that NumPy cannot read.
    A ValueError says what is wrong with a message that mpi4py does not take either.
    """
    buffer, count, displacement, datatype = parse(message)
    try:
        array = np.asarray(buffer if isinstance(buffer, np.ndarray) else memoryview(buffer))
    except (TypeError, ValueError, BufferError, NotImplementedError):
        return None
    if not array.flags.forc:
        raise ValueError(f"expected a contiguous array, got strides {array.strides} for shape {array.shape}")
    array = array.reshape(-1, order="A")
    if datatype is not None:
        if not datatype.is_predefined:
            return None
        try:
            array = array.view(dtlib.to_numpy_dtype(datatype))
        except (TypeError, ValueError):
            return None
    first = 0 if displacement is None else displacement
    last = array.size if count is None else count
    if not all(isinstance(number, (int, np.integer)) for number in (first, last)):
        return None
    if count is not None:
        last += first
    if not 0 <= first <= last <= array.size:
        raise ValueError(f"expected a buffer of at least {last} values, got {array.size}")
    return array[first:last]


def nbytes(message: Any, blocks: int = 1) -> int:
    """Return how many bytes mpi4py sends for a message; a count in it is that of each of `blocks` blocks."""
    if type(message) is np.ndarray:
        return message.nbytes
    parts = parse(message)
    if parts.is_counted:
        size = itemsize(parts.buffer) if parts.datatype is None else parts.datatype.Get_size()
        return int(parts.count) * size * blocks
    held = 0 if parts.buffer is None or parts.buffer is MPI.BOTTOM else MPI.buffer(parts.buffer).nbytes
    if parts.datatype is None:
        return held
    return held // max(1, parts.datatype.extent) * parts.datatype.Get_size()


def itemsize(buffer: Any) -> int:
    """Return the size of a buffer's elements in bytes, for all buffers that mpi4py takes."""
    try:
        return memoryview(buffer).itemsize
    except (TypeError, ValueError, BufferError):
        pass
    on_device = getattr(buffer, "__cuda_array_interface__", None)
    dtype = np.from_dlpack(buffer).dtype if on_device is None else np.dtype(on_device["typestr"])
    return dtype.itemsize
