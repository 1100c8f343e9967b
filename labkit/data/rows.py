"""Reading some of the rows of big files, and no more.

A memory map would do it in fewer lines, but each page it touches counts as this process's memory for as long
as the map lives: a rank that picks every fourth image would hold the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.errors import FormatError

WINDOW = 1 << 18  # bytes read at a time: little beside a share, much beside the cost of a call


@dataclass(frozen=True)
class Rows:
    """`count` rows of `width` bytes each, from offset `start` to the end of a file."""

    path: Path
    start: int
    width: int
    count: int


def read(files: Sequence[Rows], indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows with these indices, a few at a time: their places in `indices`, and their bytes.

    The rows of all files count as one table. Shapes: indices (k,), in any order; places (m,), int64; rows
    (m, width), uint8. Reads each file once from front to back, without the parts where nothing is wanted.
    An IndexError names the first index that is not in the table.
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
        mine = order[begin:end]
        yield from _windows(file, indices[mine] - first, mine)
        first += file.count


def _windows(file: Rows, wanted: np.ndarray, places: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the wanted rows (ascending) of one file."""
    most = max(1, WINDOW // file.width)
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
            yield places[start:stop], rows[wanted[start:stop] - low]
            start = stop
