"""The IDX format of MNIST's files: one array per file.

A file holds two zero bytes, one byte for the type, one byte for the number of dimensions, the size of each
dimension (32 bits), and the values in row-major order; all numbers are big-endian.
Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, "The IDX file format".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.errors import FormatError

# The type of the values, by the third byte.
TYPES: dict[int, np.dtype] = {
    0x08: np.dtype("u1"),
    0x09: np.dtype("i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}


@dataclass(frozen=True)
class Header:
    """The header of an IDX file; `start` is the offset of the first value, in bytes."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int


def read_header(path: Path) -> Header:
    """Return the header of an IDX file; raise FormatError unless the file has exactly the size it implies."""
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        if len(magic) < 4:
            raise FormatError(path, len(magic), "a magic number of 4 bytes", "the end of the file")
        if magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
            expected = f"magic 00 00, one of {' '.join(f'{code:02x}' for code in TYPES)}, ≥ 01 dimensions"
            raise FormatError(path, 0, expected, magic.hex(" "))
        sizes = file.read(4 * magic[3])
    start = 4 + 4 * magic[3]
    if len(sizes) < 4 * magic[3]:
        raise FormatError(path, size, f"the sizes of {magic[3]} dimensions", "the end of the file")
    dtype, shape = TYPES[magic[2]], tuple(np.frombuffer(sizes, ">u4").tolist())
    end = start + math.prod(shape) * dtype.itemsize
    if size < end:
        raise FormatError(path, size, f"{end - size} more bytes for shape {shape}", "the end of the file")
    if size > end:
        raise FormatError(path, end, f"the end of the file for shape {shape}", f"{size - end} more bytes")
    return Header(dtype, shape, start)


def read(path: Path) -> np.ndarray:
    """Return the array in an IDX file, with the file's dtype and byte order; raise FormatError if damaged."""
    header = read_header(path)
    with path.open("rb") as file:
        file.seek(header.start)
        return np.fromfile(file, header.dtype).reshape(header.shape)
