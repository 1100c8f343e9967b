"""Memory of MPI calls under way: detect changes by the program, and use by two calls at once."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm.message import parse
from labkit.watch.strict.findings import Category, Finding, add


@dataclass(eq=False)
class Region:
    """The memory of a call's buffer. `is_written`: MPI writes to it. Regions with gaps have no address."""

    operation: str
    place: str
    message: Any
    is_written: bool
    rank: int
    address: int = 0
    nbytes: int = 0
    checksum: int | None = field(default=None)

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
    region = Region(operation, place, message, is_written, rank, *_extent(message))
    for other in _active if region.nbytes else ():
        overlaps = (
            other.address < region.address + region.nbytes and region.address < other.address + other.nbytes
        )
        if overlaps and (other.is_written or is_written):
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


def forget_all() -> None:
    """Clear the record of calls under way, because the program has ended."""
    _active.clear()


def checksum(message: Any) -> int | None:
    """Return a checksum of a message's data; None if it cannot be read."""
    data = data_of(message)
    return None if data is None else zlib.crc32(data)


def data_of(message: Any) -> bytes | memoryview | None:
    """Return the bytes of a message, without the gaps of its datatype; None if they cannot be read."""
    try:
        parts = parse(message)
        if parts.buffer is None:
            return b""
        first, nbytes, raw = _bytes(message)
        if nbytes < 0:
            assert parts.datatype is not None
            out = np.empty(parts.datatype.Pack_size(1, MPI.COMM_SELF), np.uint8)
            parts.datatype.Pack([raw, 1, parts.datatype], out, 0, MPI.COMM_SELF)
            return out.tobytes()
        return memoryview(raw)[first : first + nbytes]
    except (TypeError, ValueError, BufferError, NotImplementedError, AssertionError, MPI.Exception):
        return None


def _bytes(message: Any) -> tuple[int, int, Any]:
    """Return a message's offset in its buffer, its length (-1 with gaps) and the buffer, in bytes."""
    parts = parse(message)
    raw = MPI.buffer(parts.buffer)
    datatype = parts.datatype
    if datatype is None:
        size = parts.buffer.itemsize if isinstance(parts.buffer, np.ndarray) else 1
        extent = size
    else:
        size, extent = datatype.Get_size(), datatype.Get_extent()[1]
        if size != extent or datatype.Get_true_extent()[1] != size:
            return 0, -1, raw
    first = int(parts.displacement or 0) * extent
    nbytes = int(parts.count) * extent if parts.is_counted else raw.nbytes - first
    return first, min(nbytes, raw.nbytes - first), raw


def _extent(message: Any) -> tuple[int, int]:
    try:
        if parse(message).buffer is None:
            return 0, 0
        first, nbytes, raw = _bytes(message)
    except (TypeError, ValueError, BufferError, NotImplementedError, MPI.Exception):
        return 0, 0
    return (raw.address + first, nbytes) if nbytes > 0 else (0, 0)
