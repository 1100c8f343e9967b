"""Memory of MPI calls under way: detect changes by the program, and use by two calls at once."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch.message import parse
from mpiwatch.strict.accesses import Parts, overlap, parts_of
from mpiwatch.strict.findings import Category, Finding, add
from mpiwatch.strict.objects import free_types, with_own_types


@dataclass(eq=False)
class Region:
    """The memory of a call's buffer: the addresses of its parts. `is_written`: MPI writes to it."""

    operation: str
    place: str
    message: Any
    is_written: bool
    rank: int
    parts: Parts
    checksum: int | None = field(default=None)
    types: list[MPI.Datatype] = field(default_factory=list)  # duplicates, freed at the end

    def remember(self) -> None:
        """Compute the checksum of the memory."""
        self.checksum = checksum(self.message)

    def check(self) -> None:
        """Report if the memory has changed since the checksum: the program has written to it."""
        if self.checksum is not None and checksum(self.message) != self.checksum:
            add(
                Finding(
                    Category.LOCAL_CONCURRENCY,
                    f"the program changed the buffer of {self.operation} before the call was complete",
                    self.place,
                    self.rank,
                )
            )
            self.checksum = None


_active: list[Region] = []


def begin(operation: str, place: str, message: Any, is_written: bool, rank: int) -> Region:
    """Note that a call begins to use a buffer; report if another call under way uses the same memory."""
    message, types = with_own_types(message)
    region = Region(operation, place, message, is_written, rank, _addresses(message), types=types)
    for other in _active:
        if (other.is_written or is_written) and overlap(region.parts, other.parts):
            add(
                Finding(
                    Category.LOCAL_CONCURRENCY,
                    f"{operation} uses memory that {other.operation} ({other.place}) is still "
                    f"{'writing' if other.is_written else 'reading'}",
                    place,
                    rank,
                )
            )
            break
    _active.append(region)
    region.remember()
    return region


def end(region: Region | None, check: bool = True) -> None:
    """Note that a call has completed; report if its memory has changed in the meantime."""
    if region is not None and region in _active:
        _active.remove(region)
        if check:
            region.check()
        free_types(region.types)


def forget_all() -> None:
    """Clear the record of calls under way, because the program has ended."""
    _active.clear()


def checksum(message: Any) -> int | None:
    """Return a checksum of a message's data, without the gaps of its datatype; None if it cannot be read."""
    try:
        raw, parts = _parts(message)
        value = 0
        for first, last in parts:
            value = zlib.crc32(memoryview(raw)[first:last], value)
    except (TypeError, ValueError, BufferError, NotImplementedError, MPI.Exception):
        return None
    return value


def _parts(message: Any) -> tuple[Any, Parts]:
    """Return the buffer of a message, as bytes, and the parts of it that the message uses."""
    parts = parse(message)
    if parts.buffer is None or parts.buffer is MPI.BOTTOM:
        return MPI.buffer(b""), ()
    raw = MPI.buffer(parts.buffer)
    if parts.datatype is None:
        extent = parts.buffer.itemsize if isinstance(parts.buffer, np.ndarray) else 1
    else:
        extent = parts.datatype.Get_extent()[1]
    first = int(parts.displacement or 0) * extent
    count = int(parts.count) if parts.is_counted else max(1, (raw.nbytes - first) // max(1, extent))
    if parts.datatype is None:
        return raw, ((first, min(first + count * extent, raw.nbytes)),)
    used = parts_of(parts.datatype, count, first)
    return raw, tuple((begin, min(end, raw.nbytes)) for begin, end in used if begin < raw.nbytes)


def _addresses(message: Any) -> Parts:
    try:
        raw, parts = _parts(message)
    except (TypeError, ValueError, BufferError, NotImplementedError, MPI.Exception):
        return ()
    return tuple((raw.address + first, raw.address + last) for first, last in parts if last > first)
