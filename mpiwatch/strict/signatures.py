"""Signatures of messages: the number and type of elements, and whether a receive buffer fits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from mpiwatch.message import parse
from mpiwatch.strict.findings import Category, Finding, add
from mpiwatch.strict.objects import here

ANY_TYPE = ("BYTE", "")  # fit every type; the empty text stands for an unknown type


class Signature(NamedTuple):
    """`elements` of `dtype`; for a pickled object, its length in bytes and `object`."""

    elements: int
    dtype: str
    nbytes: int

    def __str__(self) -> str:
        """Return `10 × float64`."""
        if self.dtype == "object":
            return f"a pickled object of {self.elements} bytes"
        return f"{self.elements} × {self.dtype or 'unknown type'}"


def of_object(pickled: bytes) -> Signature:
    """Return the signature of a pickled object."""
    return Signature(len(pickled), "object", len(pickled))


def of_message(message: Any) -> Signature:
    """Return the signature of a message or receive buffer as mpi4py accepts it."""
    parts = parse(message)
    if parts.buffer is None:
        return Signature(0, "", 0)
    datatype = parts.datatype
    held = memory_bytes(parts.buffer)
    if datatype is None:
        dtype, size, base_size = _dtype_of(parts.buffer)
        extent = size
    else:
        dtype, base_size = base_of(datatype)
        size, extent = datatype.Get_size(), datatype.Get_extent()[1]
    if parts.is_counted:
        count = int(parts.count)
    else:
        # The last element of a type with gaps may end before its extent does.
        count = (held // extent if extent else 0) or (1 if datatype is not None and size <= held else 0)
    return Signature(count * size // max(1, base_size), dtype, count * size)


def of_each(message: Any, ranks: int) -> dict[int, Signature]:
    """Return the signatures of a message with counts for each rank, by rank; empty if it cannot be read."""
    try:
        parts = parse(message, for_each_rank=True)
        if parts.buffer is None:
            return {}
        if parts.datatype is None:
            dtype, size, base_size = _dtype_of(parts.buffer)
            extent = size
        else:
            dtype, base_size = base_of(parts.datatype)
            size, extent = parts.datatype.Get_size(), parts.datatype.Get_extent()[1]
        if parts.count is None:
            counts = [memory_bytes(parts.buffer) // max(1, extent) // ranks] * ranks
        else:
            counts = [int(parts.count)] * ranks if parts.is_counted else [int(count) for count in parts.count]
    except (TypeError, ValueError, BufferError):  # mpi4py says what is wrong with it
        return {}
    return {
        rank: Signature(count * size // max(1, base_size), dtype, count * size)
        for rank, count in enumerate(counts)
    }


def memory_bytes(buffer: Any) -> int:
    """Return the bytes of a buffer."""
    return buffer.nbytes if isinstance(buffer, np.ndarray) else MPI.buffer(buffer).nbytes


def base_of(datatype: MPI.Datatype) -> tuple[str, int]:
    """Return the name and size of a datatype's elements; ("", 1) if they have several types."""
    if datatype.is_predefined:
        if datatype in (MPI.BYTE, MPI.PACKED):
            return "BYTE", 1
        try:
            return dtlib.to_numpy_dtype(datatype).name, datatype.Get_size()
        except (TypeError, ValueError):
            return datatype.Get_name(), max(1, datatype.Get_size())
    inner = datatype.Get_contents()[-1]
    bases = {base_of(each) for each in inner}
    for each in inner:
        if not each.is_predefined:
            each.Free()
    return bases.pop() if len(bases) == 1 else ("", 1)


def _dtype_of(buffer: Any) -> tuple[str, int, int]:
    dtype = buffer.dtype if isinstance(buffer, np.ndarray) else None
    if dtype is None:
        try:
            dtype = np.dtype(memoryview(buffer).format)
        except (TypeError, ValueError, BufferError):
            return "", 1, 1
        if isinstance(buffer, (bytes, bytearray)):
            return "BYTE", 1, 1
    return dtype.name, dtype.itemsize, dtype.itemsize


def misfit(sent: Signature, received: Signature) -> str:
    """Return why a receive does not fit the message that has arrived; empty if it does."""
    if "object" in (sent.dtype, received.dtype) and sent.dtype != received.dtype:
        if sent.dtype == "object":
            return "the message is a pickled object, and the receive expects an array"
        return "the message is an array, and the receive expects a pickled object"
    if sent.dtype == "object":
        return ""
    if sent.dtype != received.dtype and not {sent.dtype, received.dtype} & set(ANY_TYPE):
        return "the dtypes differ"
    if sent.nbytes > received.nbytes:
        return "the message is longer than the receive buffer"
    return ""


def check_dtype(call: str, rank: int, buffer: Any, datatype: MPI.Datatype) -> None:
    """Report a datatype that is not the dtype of its array.

    No error: bytes of any array, any datatype for an array of bytes, two floats for a complex number, and
    integers of the other sign. Another width of the same kind is a remark: programs that use MPI.INT for
    small numbers in an array of int64 give the right results where the low bytes come first.
    """
    held, (name, _) = getattr(buffer, "dtype", None), base_of(datatype)
    if not isinstance(held, np.dtype) or held.itemsize == 1 or held.kind not in "iufc" or name in ANY_TYPE:
        return
    try:
        given = np.dtype(name)
    except TypeError:  # a pair, such as MPI.FLOAT_INT
        return
    is_same = held.itemsize == given.itemsize and {held.kind, given.kind} in ({held.kind}, {"i", "u"})
    is_half = held.kind == "c" and given.kind == "f" and held.itemsize == 2 * given.itemsize
    has_no_datatype = held.kind == "f" and held.itemsize == 2  # half precision
    if not (is_same or is_half or has_no_datatype):
        what = datatype.Get_name() or f"a datatype of {given}"
        text = f"{call} was given {what} for an array of {held}"
        is_remark = held.kind == given.kind or {held.kind, given.kind} == {"i", "u"}
        add(Finding(Category.PARAMETER_MATCHING, text, here(), rank, is_remark))
