"""Files in the formats of MNIST and CIFAR-10 that the tests make: small, or as big as the real ones."""

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

Parts = dict[str, tuple[np.ndarray, np.ndarray]]  # "train", "test" → pixels (n, …) uint8, labels (n,) uint8


def made(name: str, train: int, test: int, seed: int = 0) -> Parts:
    """Return random images and labels of that many samples."""
    rng = np.random.default_rng(seed)
    image = {"mnist": (28, 28), "cifar10": (3, 32, 32)}[name]
    return {
        part: (rng.integers(0, 256, (n, *image), np.uint8), rng.integers(0, 10, n, np.uint8))
        for part, n in (("train", train), ("test", test))
    }


def idx(array: np.ndarray) -> bytes:
    """Return an array of bytes as an IDX file."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def packed(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1, mtime=0)


def mnist_files(parts: Parts) -> dict[str, bytes]:
    """Return MNIST's four files, by name."""
    files = {}
    for begin, (pixels, labels) in zip(("train", "t10k"), parts.values(), strict=True):
        files[f"{begin}-images-idx3-ubyte.gz"] = packed(idx(pixels))
        files[f"{begin}-labels-idx1-ubyte.gz"] = packed(idx(labels))
    return files


def cifar_members(parts: Parts) -> dict[str, bytes]:
    """Return the files in CIFAR-10's archive; the training samples as evenly among the five as can be."""
    members = {}
    for part, (pixels, labels) in parts.items():
        rows = np.column_stack([labels[:, None], pixels.reshape(len(labels), 3072)])
        names = ["test_batch"] if part == "test" else [f"data_batch_{k}" for k in range(1, 6)]
        for name, some in zip(names, np.array_split(rows, len(names)), strict=True):
            members[f"cifar-10-batches-bin/{name}.bin"] = some.tobytes()
    return members


def archive(members: Mapping[str, bytes]) -> bytes:
    """Return a packed tar archive, in the format of CIFAR-10's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed(out.getvalue())


def files_of(name: str, parts: Parts) -> dict[str, bytes]:
    if name == "mnist":
        return mnist_files(parts)
    return {"cifar-10-binary.tar.gz": archive(cifar_members(parts))}


def source_of(name: str, parts: Parts, files: Mapping[str, bytes], *mirrors: str) -> Source:
    """Return what labkit must know of a made set: as of the real one, but for sums, numbers and addresses."""
    return replace(
        SOURCES[name],
        files={file: hashlib.sha256(data).hexdigest() for file, data in files.items()},
        samples={part: len(labels) for part, (_, labels) in parts.items()},
        mirrors=mirrors or ("http://127.0.0.1:9/",),  # the discard port: nobody answers there
    )


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
