"""The files of MNIST (IDX) and CIFAR-10 (binary): decompression, strict checks, and reading selected rows."""

from __future__ import annotations

import math
import shutil
import tarfile
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


BLOCK = 1 << 18  # bytes read at a time: small compared with a shard, large enough to amortise the call
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
    most = max(1, BLOCK // file.width)
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


CLASSES = 10


def _labels(files: Sequence[RowFile]) -> np.ndarray:
    """Return the first byte of each row: the label of a sample. Shape: (n,), uint8.

    Raise FormatError if one is not a class.
    """
    labels = np.empty(sum(file.count for file in files), np.uint8)
    for positions, rows in read_rows(files, np.arange(len(labels))):
        labels[positions] = rows[:, 0]
    wrong = np.flatnonzero(labels >= CLASSES)
    if len(wrong):
        row = int(wrong[0])
        for file in files:
            if row < file.count:
                offset = file.start + row * file.width
                raise FormatError(file.path, offset, f"a label 0 … {CLASSES - 1}", str(labels[wrong[0]]))
            row -= file.count
    return labels


# MNIST: four files, each gzipped.
SIDE = 28
PREFIXES = {"train": "train", "test": "t10k"}  # of the file names, by split
CONTENTS = ("images-idx3", "labels-idx1")


def idx_rows(path: Path, *item: int) -> RowFile:
    """Return the items of an IDX file of unsigned bytes, of shape (n, *item), as rows.

    Raise FormatError unless the header states this shape and the size of the file matches it.
    """
    size = path.stat().st_size
    magic = bytes([0, 0, 8, 1 + len(item)])  # 8 stands for unsigned bytes
    start = len(magic) + 4 * magic[3]
    with path.open("rb") as file:
        header = file.read(start)
    if len(header) < len(magic):
        raise FormatError(path, len(header), "a magic number of 4 bytes", "the end of the file")
    if header[:4] != magic:
        raise FormatError(path, 0, f"magic {magic.hex(' ')} (unsigned bytes)", header[:4].hex(" "))
    if len(header) < start:
        raise FormatError(path, size, f"the sizes of {magic[3]} dimensions", "the end of the file")
    count, *shape = np.frombuffer(header[4:], ">u4").tolist()
    if tuple(shape) != item:
        raise FormatError(path, 8, f"items of shape {item}", f"{tuple(shape)}")
    width = math.prod(item)
    end = start + count * width
    if size < end:
        raise FormatError(path, size, f"{end - size} more bytes for {count} items", "the end of the file")
    if size > end:
        raise FormatError(path, end, f"the end of the file after {count} items", f"{size - end} more bytes")
    return RowFile(path, start, width, count)


def unpack_mnist(folder: Path) -> list[Path]:
    """Unpack the four files in the folder, and return the paths of the unpacked files."""
    unpacked = [folder / f"{prefix}-{what}-ubyte" for prefix in PREFIXES.values() for what in CONTENTS]
    for path in unpacked:
        gunzip(path.with_name(f"{path.name}.gz"), path)
    return unpacked


def read_mnist_split(folder: Path, split: str) -> tuple[list[RowFile], np.ndarray]:
    """Return the image file of a split ("train", "test") and its labels, from unpacked files.

    Each row is an image of 784 bytes. Shape: labels (n,), uint8. Raise FormatError if a file is damaged.
    """
    images, labels = (folder / f"{PREFIXES[split]}-{what}-ubyte" for what in CONTENTS)
    image_rows, label_rows = idx_rows(images, SIDE, SIDE), idx_rows(labels)
    if label_rows.count != image_rows.count:
        expected = f"{image_rows.count} labels for the {image_rows.count} images in {images.name}"
        raise FormatError(labels, 4, expected, str(label_rows.count))
    return [image_rows], _labels([label_rows])


# CIFAR-10: one gzipped tar archive.
ARCHIVE, INSIDE = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
ROW_WIDTH = 1 + 3 * 32 * 32
FILES_BY_SPLIT = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}


def unpack_cifar(folder: Path) -> list[Path]:
    """Unpack the six files from the archive in the folder, and return their paths."""
    packed, tar = folder / ARCHIVE, folder / ARCHIVE.removesuffix(".gz")
    unpacked = [folder / name for names in FILES_BY_SPLIT.values() for name in names]
    # Unpack and check the whole archive first, so that damaged bytes are never taken for a tar header.
    gunzip(packed, tar)
    try:
        with tarfile.open(tar, "r:") as archive:
            members = archive.getmembers()
            for path in unpacked:
                name = f"{INSIDE}/{path.name}"
                inside = [member for member in members if member.name == name and member.isfile()]
                source = archive.extractfile(inside[0]) if len(inside) == 1 else None
                if source is None:
                    got = f"{len(inside)} files of that name"
                    raise FormatError(packed, 0, f"one file {name}", got)
                with atomic_write(path) as out:
                    shutil.copyfileobj(source, out)
    except tarfile.TarError as error:
        raise FormatError(packed, 0, "a gzipped tar archive", str(error)) from None
    finally:
        tar.unlink()
    return unpacked


def read_cifar_split(folder: Path, split: str) -> tuple[list[RowFile], np.ndarray]:
    """Return the files of a split ("train", "test") and its labels, from unpacked files.

    Each row has 3073 bytes, the label first. Shape: labels (n,), uint8. Raise FormatError if a file
    is damaged.
    """
    files = []
    for path in (folder / name for name in FILES_BY_SPLIT[split]):
        count, more = divmod(path.stat().st_size, ROW_WIDTH)
        if more:
            got = f"a row of {more} bytes at the end"
            raise FormatError(path, count * ROW_WIDTH, f"rows of {ROW_WIDTH} bytes", got)
        files.append(RowFile(path, 0, ROW_WIDTH, count))
    return files, _labels(files)
