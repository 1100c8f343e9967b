"""What mpi4py takes for a message: an array, anything with a buffer, or a list of one, count and datatype."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib


def flat(message: Any) -> np.ndarray | None:
    """Return the values of a message as a flat array of a NumPy dtype, on the same memory.

    None if it has no such form: a derived datatype, or a buffer that NumPy does not know. A ValueError says
    what is wrong with a message that mpi4py would not take either.
    """
    if isinstance(message, (list, tuple)):
        return _of_list(*message)
    try:
        array = np.asarray(message if isinstance(message, np.ndarray) else memoryview(message))
    except (TypeError, ValueError, BufferError, NotImplementedError):
        return None
    if not array.flags.forc:
        raise ValueError(f"expected a contiguous array, got strides {array.strides} for shape {array.shape}")
    return array.reshape(-1, order="A")


def _of_list(buffer: Any, *rest: Any) -> np.ndarray | None:
    """Return the values of a message given as [buffer, count, datatype] and the like."""
    array = flat(buffer)
    if array is None:
        return None
    if rest and isinstance(rest[-1], (MPI.Datatype, str)):
        *rest, datatype = rest  # type: ignore[assignment]
        if isinstance(datatype, str):
            datatype = MPI.Datatype.fromcode(datatype)
        if not datatype.is_predefined:
            return None
        try:
            array = array.view(dtlib.to_numpy_dtype(datatype))
        except (TypeError, ValueError):
            return None
    if not any(word is not None for word in rest):
        return array
    if len(rest) > 1 or not isinstance(rest[0], (int, np.integer)):
        return None
    if rest[0] > array.size:
        raise ValueError(f"expected a buffer of at least {rest[0]} values, got {array.size}")
    return array[: rest[0]]


def nbytes(message: Any) -> int:
    """Return how many bytes mpi4py sends for a message."""
    if isinstance(message, np.ndarray):
        return message.nbytes
    if not isinstance(message, (list, tuple)):
        if message is None:
            return 0
        array = flat(message)
        return np.from_dlpack(message).nbytes if array is None else array.nbytes
    buffer, *rest = message
    datatype = next((word for word in rest if isinstance(word, (MPI.Datatype, str))), None)
    if isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    count = rest[0] if rest and rest[0] is not datatype and not isinstance(rest[0], str) else None
    if isinstance(count, (list, tuple)):
        count = count[0]  # of a count and a displacement
    if datatype is None:
        array = flat(buffer)
        return nbytes(buffer) if count is None or array is None else count * array.itemsize
    if count is None:
        count = nbytes(buffer) // max(1, datatype.extent)
    return count * datatype.Get_size()
