"""Read selected rows of large files.

A memory map would take fewer lines, but every page it touches counts as memory of this process as long as the
map exists: a rank that reads every fourth image would hold the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.errors import FormatError

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
