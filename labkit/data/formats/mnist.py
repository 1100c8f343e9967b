"""MNIST's four files: images and labels, each for training and test.

All are IDX files of unsigned bytes: images (n, 28, 28), 0 (paper) … 255 (ink); labels (n,), 0 … 9.
Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labkit.data.errors import FormatError
from labkit.data.formats import idx
from labkit.data.formats.gunzip import gunzip
from labkit.data.formats.rows import RowFile

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
    image_header, label_header = idx.read_header(images), idx.read_header(labels)
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
    values = idx.read(labels)
    wrong = np.flatnonzero(values >= CLASSES)
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(labels, label_header.start + at, f"a label 0 … {CLASSES - 1}", str(values[at]))
    return [RowFile(images, image_header.start, SIDE * SIDE, n)], values
