"""CIFAR-10's binary format."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np

from labkit.data.files import FormatError, RowFile, gunzip, read_rows
from labkit.files import atomic_write

ARCHIVE, INSIDE = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
WIDTH, CLASSES = 1 + 3 * 32 * 32, 10
FILES_BY_SPLIT = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}
NAMES = [name for names in FILES_BY_SPLIT.values() for name in names]


def unpack(folder: Path) -> list[Path]:
    """Unpack the six files from the archive in the folder, and return their paths."""
    packed, tar = folder / ARCHIVE, folder / ARCHIVE.removesuffix(".gz")
    # Unpack and check the whole archive first, so that damaged bytes are never taken for a tar header.
    gunzip(packed, tar)
    try:
        with tarfile.open(tar, "r:") as archive:
            members = archive.getmembers()
            for name in NAMES:
                inside = [m for m in members if m.name == f"{INSIDE}/{name}" and m.isfile()]
                source = archive.extractfile(inside[0]) if len(inside) == 1 else None
                if source is None:
                    raise FormatError(
                        packed, 0, f"one file {INSIDE}/{name}", f"{len(inside)} files of that name"
                    )
                with atomic_write(folder / name) as out:
                    shutil.copyfileobj(source, out)
    except tarfile.TarError as error:
        raise FormatError(packed, 0, "a gzipped tar archive", str(error)) from None
    finally:
        tar.unlink()
    return [folder / name for name in NAMES]


def read_split(folder: Path, split: str) -> tuple[list[RowFile], np.ndarray]:
    """Return the files of a split ("train", "test") and its labels, from unpacked files.

    Each row has 3073 bytes, the label first. Shape: labels (n,), uint8. Raise FormatError if a file
    is damaged.
    """
    files = []
    for file in FILES_BY_SPLIT[split]:
        path = folder / file
        size = path.stat().st_size
        if size % WIDTH:
            last = size - size % WIDTH
            raise FormatError(
                path, last, f"rows of {WIDTH} bytes", f"a row of {size - last} bytes at the end"
            )
        files.append(RowFile(path, 0, WIDTH, size // WIDTH))
    labels = np.empty(sum(rows.count for rows in files), np.uint8)
    for positions, block in read_rows(files, np.arange(len(labels))):
        labels[positions] = block[:, 0]
    wrong = np.flatnonzero(labels >= CLASSES)
    if len(wrong):
        at = row = int(wrong[0])
        for rows in files:
            if row < rows.count:
                raise FormatError(rows.path, row * WIDTH, f"a label 0 … {CLASSES - 1}", str(labels[at]))
            row -= rows.count
    return files, labels
