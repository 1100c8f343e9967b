"""MNIST's four files: images and labels, for training and test.

Images are IDX files of unsigned bytes (n, 28, 28), 0 (paper) … 255 (ink); labels (n,), 0 … 9.
Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labkit.data import idx
from labkit.data.errors import FormatError
from labkit.data.gunzip import gunzip
from labkit.data.rows import Rows

SIDE, CLASSES = 28, 10
PARTS = {"train": "train", "test": "t10k"}  # → how the names of its files begin
NAMES = [f"{begin}-{kind}-ubyte" for begin in PARTS.values() for kind in ("images-idx3", "labels-idx1")]


def unpack(folder: Path) -> list[Path]:
    """Unpack the four files in a folder beside themselves; return the unpacked ones."""
    for name in NAMES:
        gunzip(folder / f"{name}.gz", folder / name)
    return [folder / name for name in NAMES]


def part(folder: Path, name: str) -> tuple[list[Rows], np.ndarray]:
    """Return where the images of a part ("train", "test") lie, and its labels, from unpacked files.

    Shapes: rows of 784 bytes; labels (n,), uint8. A FormatError names file and offset.
    """
    images, labels = (folder / f"{PARTS[name]}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    pictures, answers = idx.header(images), idx.header(labels)
    if pictures.dtype != np.uint8 or pictures.shape[1:] != (SIDE, SIDE):
        raise FormatError(
            images, 2, f"unsigned bytes (n, {SIDE}, {SIDE})", f"{pictures.dtype} {pictures.shape}"
        )
    if answers.dtype != np.uint8 or len(answers.shape) != 1:
        raise FormatError(labels, 2, "unsigned bytes (n,)", f"{answers.dtype} {answers.shape}")
    n = pictures.shape[0]
    if answers.shape[0] != n:
        raise FormatError(labels, 4, f"{n} labels, as {images.name} has images", str(answers.shape[0]))
    values = idx.read(labels)
    wrong = np.flatnonzero(values >= CLASSES)
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(labels, answers.start + at, f"a label 0 … {CLASSES - 1}", str(values[at]))
    return [Rows(images, pictures.start, SIDE * SIDE, n)], values
