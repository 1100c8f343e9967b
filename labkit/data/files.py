"""Files of data sets: errors, decompression, and reading selected rows of large files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.files import atomic_write


class FormatError(ValueError):
    """A file violates its format; the message has file, offset in bytes, what was expected and got."""

    def __init__(self, path: Path, offset: int, expected: str, got: str) -> None:
        super().__init__(f"{path.name}, offset {offset}: expected {expected}, got {got} ({path})")


class FetchError(OSError):
    """A data set is not in the cache and cannot be downloaded; the message says what to do instead."""


BLOCK = 1 << 18  # packed bytes in memory at a time
GZIP = zlib.MAX_WBITS | 16  # makes zlib read the header and check the CRC-32 and the length at the end


def gunzip(packed: Path, unpacked: Path) -> None:
    """Unpack a gzip file to `unpacked`, checked against its CRC-32; a damaged file leaves nothing there.

    Raise FormatError, with the offset in the packed file. Memory use does not depend on the file's size.
    """
    stream = zlib.decompressobj(GZIP)
    with packed.open("rb") as source, atomic_write(unpacked) as out:
        offset = 0
        while block := source.read(BLOCK):
            if stream.eof:
                raise FormatError(packed, offset, "the end of the file", "more bytes")
            while block:
                try:
                    out.write(stream.decompress(block, 4 * BLOCK))
                except zlib.error as error:
                    raise FormatError(packed, offset, "valid gzip data", str(error)) from None
                offset += len(block) - len(stream.unconsumed_tail) - len(stream.unused_data)
                block = stream.unconsumed_tail
            if stream.unused_data:
                raise FormatError(packed, offset, "the end of the file", "more bytes")
        if not stream.eof:
            raise FormatError(packed, offset, "more gzip data", "the end of the file")


READ_SIZE = 1 << 18  # bytes per read: small compared with a shard, large enough to amortise the call


@dataclass(frozen=True)
class RowFile:
    """A file that holds `count` rows of `width` bytes each, from offset `start` to its end."""

    path: Path
    start: int
    width: int
    count: int


def read_rows(files: Sequence[RowFile], indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows with these indices, a few at a time: their positions in `indices`, and their bytes.

    Rows are numbered across all files. Shapes: indices (k,), in any order; positions (m,), int64; rows
    (m, width), uint8. Read each file once from front to back, skipping ranges that no index needs. Raise
    IndexError for the first index out of range.
    """
    indices = np.asarray(indices)
    total = sum(file.count for file in files)
    outside = indices[(indices < 0) | (indices >= total)]
    if len(outside):
        raise IndexError(f"sample {outside[0]}: expected 0 … {total - 1}")
    order = np.argsort(indices, kind="stable")
    first = 0
    for file in files:
        begin, end = np.searchsorted(indices, (first, first + file.count), sorter=order)
        positions = order[begin:end]
        yield from _read_file(file, indices[positions] - first, positions)
        first += file.count


def _read_file(
    file: RowFile, wanted: np.ndarray, positions: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows `wanted` (ascending) of one file."""
    most = max(1, READ_SIZE // file.width)
    with file.path.open("rb", buffering=0) as handle:
        start = 0
        while start < len(wanted):
            low = int(wanted[start])
            stop = int(np.searchsorted(wanted, low + most))
            rows = np.empty((int(wanted[stop - 1]) + 1 - low, file.width), np.uint8)
            offset = file.start + low * file.width
            handle.seek(offset)
            got = handle.readinto(rows.reshape(-1).data) or 0
            if got < rows.size:
                raise FormatError(file.path, offset + got, "more samples", "the end of the file")
            yield positions[start:stop], rows[wanted[start:stop] - low]
            start = stop
