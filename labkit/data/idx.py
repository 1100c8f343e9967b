"""The IDX format: one array, in MNIST's files.

A file is: two zero bytes, a byte for the type, a byte for the number of dimensions, the size of each
dimension (32 bits), and the values, row by row; all numbers big-endian.
Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, "The IDX file format".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.errors import FormatError

# The third byte → the type of a value.
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
    """What an IDX file says of its array; `start` is the offset of the first value, in bytes."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int


def header(path: Path) -> Header:
    """Return the header of an IDX file; a FormatError if the file is not as long as it must then be."""
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
    """Return the array in an IDX file, in the type and byte order of the file; a FormatError if damaged."""
    head = header(path)
    with path.open("rb") as file:
        file.seek(head.start)
        return np.fromfile(file, head.dtype).reshape(head.shape)
