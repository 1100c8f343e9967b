"""CIFAR-10, binary version: five files of training images and one for the test, in one archive.

A file is nothing but rows of 3073 bytes: the label, 0 … 9, then 32×32 red values, row by row, then the green,
then the blue.
Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; the data set's page.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np

from labkit.data.errors import FormatError
from labkit.data.gunzip import gunzip
from labkit.data.rows import Rows, read
from labkit.files import atomic_write

ARCHIVE, INSIDE = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
WIDTH, CLASSES = 1 + 3 * 32 * 32, 10
PARTS = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}
NAMES = [name for names in PARTS.values() for name in names]


def unpack(folder: Path) -> list[Path]:
    """Unpack the six files of images from the archive in a folder; return them."""
    packed, tar = folder / ARCHIVE, folder / ARCHIVE.removesuffix(".gz")
    # First the whole archive, checked against its CRC-32: no damaged byte is ever taken for a tar header.
    gunzip(packed, tar)
    try:
        with tarfile.open(tar, "r:") as archive:
            members = archive.getmembers()
            for name in NAMES:
                inside = [m for m in members if m.name == f"{INSIDE}/{name}" and m.isfile()]
                source = archive.extractfile(inside[0]) if len(inside) == 1 else None
                if source is None:
                    raise FormatError(packed, 0, f"one file {INSIDE}/{name}", f"{len(inside)} of that name")
                with atomic_write(folder / name) as out:
                    shutil.copyfileobj(source, out)
    except tarfile.TarError as error:
        raise FormatError(packed, 0, "a tar archive, packed", str(error)) from None
    finally:
        tar.unlink()
    return [folder / name for name in NAMES]


def part(folder: Path, name: str) -> tuple[list[Rows], np.ndarray]:
    """Return where the rows of a part ("train", "test") lie, and its labels, from unpacked files.

    Shapes: rows of 3073 bytes, the label first; labels (n,), uint8. A FormatError names file and offset.
    """
    files = []
    for file in PARTS[name]:
        path = folder / file
        size = path.stat().st_size
        if size % WIDTH:
            last = size - size % WIDTH
            raise FormatError(path, last, f"rows of {WIDTH} bytes", f"one of {size - last} at the end")
        files.append(Rows(path, 0, WIDTH, size // WIDTH))
    labels = np.empty(sum(rows.count for rows in files), np.uint8)
    for places, block in read(files, np.arange(len(labels))):
        labels[places] = block[:, 0]
    wrong = np.flatnonzero(labels >= CLASSES)
    if len(wrong):
        at = row = int(wrong[0])
        for rows in files:
            if row < rows.count:
                raise FormatError(rows.path, row * WIDTH, f"a label 0 … {CLASSES - 1}", str(labels[at]))
            row -= rows.count
    return files, labels
