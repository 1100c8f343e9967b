"""MNIST's files, in the IDX format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.files import FormatError, RowFile, gunzip

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


SIDE, CLASSES = 28, 10
PREFIXES = {"train": "train", "test": "t10k"}  # of the file names, by split
NAMES = [
    f"{prefix}-{content}-ubyte" for prefix in PREFIXES.values() for content in ("images-idx3", "labels-idx1")
]


def unpack(folder: Path) -> list[Path]:
    """Unpack the four files in the folder, and return the paths of the unpacked files."""
    for name in NAMES:
        gunzip(folder / f"{name}.gz", folder / name)
    return [folder / name for name in NAMES]


def read_split(folder: Path, split: str) -> tuple[list[RowFile], np.ndarray]:
    """Return the image file of a split ("train", "test") and its labels, from unpacked files.

    Each row is an image of 784 bytes. Shape: labels (n,), uint8. Raise FormatError if a file is damaged.
    """
    images, labels = (
        folder / f"{PREFIXES[split]}-{content}-ubyte" for content in ("images-idx3", "labels-idx1")
    )
    image_header, label_header = read_header(images), read_header(labels)
    if image_header.dtype != np.uint8 or image_header.shape[1:] != (SIDE, SIDE):
        raise FormatError(
            images, 2, f"unsigned bytes (n, {SIDE}, {SIDE})", f"{image_header.dtype} {image_header.shape}"
        )
    if label_header.dtype != np.uint8 or len(label_header.shape) != 1:
        raise FormatError(labels, 2, "unsigned bytes (n,)", f"{label_header.dtype} {label_header.shape}")
    n = image_header.shape[0]
    if label_header.shape[0] != n:
        raise FormatError(
            labels, 4, f"{n} labels for the {n} images in {images.name}", str(label_header.shape[0])
        )
    values = read(labels)
    wrong = np.flatnonzero(values >= CLASSES)
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(labels, label_header.start + at, f"a label 0 … {CLASSES - 1}", str(values[at]))
    return [RowFile(images, image_header.start, SIDE * SIDE, n)], values
