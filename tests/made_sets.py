"""Random data in the file formats of MNIST and CIFAR-10, for tests: small, or as large as the originals."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from labkit.data import SOURCES, Source

Samples = dict[str, tuple[np.ndarray, np.ndarray]]  # by split: pixels (n, …) uint8, labels (n,) uint8


def random_samples(name: str, train: int, test: int, seed: int = 0) -> Samples:
    """Return random images and labels: that many training and test samples."""
    rng = np.random.default_rng(seed)
    image = {"mnist": (28, 28), "cifar10": (3, 32, 32)}[name]
    return {
        split: (rng.integers(0, 256, (n, *image), np.uint8), rng.integers(0, 10, n, np.uint8))
        for split, n in (("train", train), ("test", test))
    }


def idx(array: np.ndarray) -> bytes:
    """Return the content of an IDX file with this array of bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1, mtime=0)


def archive_files(name: str, samples: Samples) -> dict[str, bytes]:
    """Return the files of MNIST, or the archive of CIFAR-10, by name."""
    if name == "mnist":
        files = {}
        for prefix, (pixels, labels) in zip(("train", "t10k"), samples.values(), strict=True):
            files[f"{prefix}-images-idx3-ubyte.gz"] = gzipped(idx(pixels))
            files[f"{prefix}-labels-idx1-ubyte.gz"] = gzipped(idx(labels))
        return files
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for split, (pixels, labels) in samples.items():
            rows = np.column_stack([labels[:, None], pixels.reshape(len(labels), 3072)])
            names = ["test_batch"] if split == "test" else [f"data_batch_{k}" for k in range(1, 6)]
            for file, chunk in zip(names, np.array_split(rows, len(names)), strict=True):
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{file}.bin")
                member.size = chunk.nbytes
                tar.addfile(member, io.BytesIO(chunk.tobytes()))
    return {"cifar-10-binary.tar.gz": gzipped(out.getvalue())}


def source_for(name: str, files: Mapping[str, bytes], *mirrors: str) -> Source:
    """Return the source of such files: the original's, but with their checksums and addresses."""
    return replace(
        SOURCES[name],
        files={file: hashlib.sha256(data).hexdigest() for file, data in files.items()},
        mirrors=mirrors or ("http://127.0.0.1:9/",),  # nothing listens on the discard port
    )


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by name into a folder, and create it first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
