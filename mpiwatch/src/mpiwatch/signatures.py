"""What a message holds: so many elements of a type. It must be the same where it is sent and received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from mpiwatch.arguments import COUNTS, LAYOUTS, BufferSpec, is_in_place, nbytes, parse, parts_of
from mpiwatch.report import UNKNOWN

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


def of_message(message: Any) -> Signature:
    """Return the signature of a message or receive buffer as mpi4py accepts it."""
    try:
        parts = parse(message)
        return Signature(0, "", 0) if parts.buffer is None else _signature(parts, nbytes(message))
    except Exception:  # no buffer: mpi4py says what is wrong with it
        return Signature(0, "", 0)


def of_each(message: Any, ranks: int) -> dict[int, Signature]:
    """Return the signatures of a message with counts for each rank, by rank; empty if it cannot be read."""
    try:
        parts = parts_of(message, COUNTS, ranks)
        return {
            rank: _signature(part.message, part.number * part.message.size) for rank, part in enumerate(parts)
        }
    except Exception:  # mpi4py says what is wrong with it
        return {}


def _signature(parts: BufferSpec, size: int) -> Signature:
    """Return the signature of `size` bytes of a message's elements."""
    buffer, name, itemsize = parts.buffer, "", 1
    if parts.datatype is not None:
        name, itemsize = base_of(parts.datatype)
    elif isinstance(buffer, (bytes, bytearray)):
        name = "BYTE"
    else:
        try:
            dtype = buffer.dtype if isinstance(buffer, np.ndarray) else np.dtype(memoryview(buffer).format)
            name, itemsize = dtype.name, dtype.itemsize
        except Exception:  # of an unknown type
            pass
    return Signature(size // max(1, itemsize), name, size)


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
    bases = {base_of(part) for part in inner}
    for part in inner:
        if not part.is_predefined:
            part.Free()
    return bases.pop() if len(bases) == 1 else ("", 1)


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


class Amounts(NamedTuple):
    """What a rank sends to each rank in a collective, and what it expects from each one."""

    sent: dict[int, Signature]
    expected: dict[int, Signature]


def amounts(name: str, buffers: tuple[Any, Any], rank: int, size: int, root: int) -> Amounts:
    """Return what a rank sends and expects in a collective with counts for each rank.

    `buffers`: to send and to receive. `root`: UNKNOWN if the collective has none.
    """
    is_root = root in (UNKNOWN, rank)
    peers = range(size) if root == UNKNOWN else [root]
    sides: list[dict[int, Signature]] = []
    for buffer, layout in zip(buffers, LAYOUTS[name.lower()], strict=True):
        if is_in_place(buffer) or (layout == COUNTS and not is_root):
            sides.append({})
        elif layout == COUNTS:
            sides.append(of_each(buffer, size))
        else:
            sides.append(dict.fromkeys(peers, of_message(buffer)))
    return Amounts(sides[0], sides[1])


def misfit_of(name: str, everyone: Sequence[Amounts]) -> str:
    """Return which rank sends another amount than a rank expects from it; empty if none does."""
    for sender, (sent, _) in enumerate(everyone):
        for receiver, amount in sent.items():
            expected = everyone[receiver].expected.get(sender, amount)
            if amount.nbytes != expected.nbytes:
                return f"{name}: rank {receiver} expects {expected} from rank {sender}, which sends {amount}"
    return ""
