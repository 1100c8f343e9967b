"""The memory that calls under way use: who changes it too early, and which calls share it."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import Datatype as RawDatatype  # mpi4py's own, also in strict mode

from mpiwatch.arguments import WHOLE, parts_of
from mpiwatch.places import here
from mpiwatch.report import FindingKind
from mpiwatch.signatures import ANY_TYPE, base_of
from mpiwatch.strict.findings import Category, add

MOST_PARTS = 10_000

Parts = tuple[tuple[int, int], ...]  # of memory: the first byte of each, and the one after its last


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
        dtype = np.dtype(name)
    except TypeError:  # a pair, such as MPI.FLOAT_INT
        return
    is_same = held.itemsize == dtype.itemsize and {held.kind, dtype.kind} in ({held.kind}, {"i", "u"})
    is_half = held.kind == "c" and dtype.kind == "f" and held.itemsize == 2 * dtype.itemsize
    has_no_datatype = held.kind == "f" and held.itemsize == 2  # half precision
    if not (is_same or is_half or has_no_datatype):
        what = datatype.Get_name() or f"a datatype of {dtype}"
        is_remark = held.kind == dtype.kind or {held.kind, dtype.kind} == {"i", "u"}
        text = f"{call} was given {what} for an array of {held}"
        add(Category.PARAMETER_MATCHING, text, here(), is_remark)


def overlap(some: Parts, others: Parts) -> bool:
    """Return whether a part of `some` and one of `others` have bytes in common; each is in order."""
    i = j = 0
    while i < len(some) and j < len(others):
        if some[i][0] < others[j][1] and others[j][0] < some[i][1]:
            return True
        if some[i][1] <= others[j][1]:
            i += 1
        else:
            j += 1
    return False


def bytes_of(datatype: MPI.Datatype, count: int, first: int) -> Parts:
    """Return the bytes of `count` elements of a datatype, the first of them at byte `first`.

    Empty if they are too many parts to compare.
    """
    size, extent = datatype.Get_size(), datatype.Get_extent()[1]
    lowest, span = datatype.Get_true_extent()
    at = first + lowest
    if size == extent == span or not size or not count:
        return ((at, at + count * size),)
    # MPI itself marks the bytes: it unpacks ones into zeros.
    marks = np.zeros(span, np.uint8)
    moved = RawDatatype.Create_hindexed(datatype, [1], [-lowest])
    whole = RawDatatype.Create_resized(moved, 0, span).Commit()
    RawDatatype.Unpack(whole, np.full(size, 0xFF, np.uint8), 0, marks, MPI.COMM_SELF)
    free_types([moved, whole])
    edges = np.flatnonzero(np.diff(marks != 0, prepend=False, append=False)).reshape(-1, 2).tolist()
    if len(edges) * count > MOST_PARTS:
        return ()
    return tuple(
        sorted((at + i * extent + begin, at + i * extent + end) for i in range(count) for begin, end in edges)
    )


def with_own_types(message: Any) -> tuple[Any, list[RawDatatype]]:
    """Return a message with duplicates of its derived datatypes, and these.

    A program may free a datatype while a call that uses it is under way.
    """
    if not isinstance(message, (list, tuple)):
        return message, []
    types: list[RawDatatype] = []
    parts = list(message)
    for index, part in enumerate(parts):
        if isinstance(part, RawDatatype) and part != MPI.DATATYPE_NULL and not part.is_predefined:
            parts[index] = RawDatatype.Dup(part)
            types.append(parts[index])
    return (parts, types) if types else (message, [])


def free_types(types: list[RawDatatype]) -> None:
    """Free the duplicates that `with_own_types` has made."""
    while types:
        RawDatatype.Free(types.pop())


class Region:
    """The memory of a call under way; it is reported if the program writes to it, or if two calls use it.

    `message`: the buffer of the call, with datatypes of its own. `is_written`: MPI writes to it.
    """

    def __init__(self, operation: str, place: str, message: Any, is_written: bool) -> None:
        self.operation, self.place, self.is_written = operation, place, is_written
        self.message, self.types = with_own_types(message)
        self.raw, self.parts = _used(self.message)
        start = self.raw.address
        self.addresses = tuple((start + first, start + last) for first, last in self.parts if last > first)
        for other in active:
            if (other.is_written or is_written) and overlap(self.addresses, other.addresses):
                use = "writing" if other.is_written else "reading"
                text = f"{operation} uses memory that {other.operation} ({other.place}) is still {use}"
                add(Category.LOCAL_CONCURRENCY, text, place, kind=FindingKind.MEMORY_IN_USE)
                break
        active.append(self)
        self.remember()

    def remember(self) -> None:
        """Compute the checksum of the memory as it is now."""
        self.checksum = 0
        for first, last in self.parts:
            self.checksum = zlib.crc32(memoryview(self.raw)[first:last], self.checksum)

    def check(self) -> None:
        """Report if the memory has changed since the checksum: the program has written to it."""
        before = self.checksum
        self.remember()
        if self.checksum != before:
            text = f"the program changed the buffer of {self.operation} before the call was complete"
            add(Category.LOCAL_CONCURRENCY, text, self.place, kind=FindingKind.BUFFER_CHANGED)

    def end(self, check: bool = True) -> None:
        """Note that the call has completed; report if its memory has changed in the meantime."""
        if self in active:
            active.remove(self)
            if check:
                self.check()
            free_types(self.types)


active: list[Region] = []  # of the calls under way


def _used(message: Any) -> tuple[Any, Parts]:
    """Return the buffer of a message, as bytes, and the parts of it that the message uses.

    These are without the gaps of its datatype. There are none if the message cannot be read.
    """
    try:
        part = next(parts_of(message, WHOLE, 1))
        (buffer, _, _, datatype), number, first = part.message, part.number, part.start
        raw = MPI.buffer(b"" if buffer is MPI.BOTTOM else buffer)
        plain = ((first, first + number * part.message.extent),)
        used = plain if datatype is None else bytes_of(datatype, number, first)
    except (AttributeError, TypeError, ValueError, BufferError, NotImplementedError, MPI.Exception):
        return MPI.buffer(b""), ()
    return raw, tuple((begin, min(end, raw.nbytes)) for begin, end in used if begin < raw.nbytes)
