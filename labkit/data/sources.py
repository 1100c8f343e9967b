"""Sources of the large data sets: download addresses, checksums, and the cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from labkit.data.formats import cifar, mnist
from labkit.data.formats.rows import RowFile

CACHE = "LABKIT_DATA"  # environment variable with the path of another cache folder


@dataclass(frozen=True)
class Source:
    """A data set that has to be fetched.

    `files` maps file names to the SHA-256 of the originals. Each address in `mirrors` holds all files; the
    first is tried first. `samples` maps splits to numbers of samples. `image` is (channels, height, width).
    `unpack` and `read_split` belong to the format (see labkit.data.formats.mnist). In each row of a file, the
    image comes last.
    """

    description: str
    files: Mapping[str, str]
    mirrors: tuple[str, ...]
    samples: Mapping[str, int]
    image: tuple[int, int, int]
    unpack: Callable[[Path], list[Path]]
    read_split: Callable[[Path, str], tuple[list[RowFile], np.ndarray]]


SOURCES: dict[str, Source] = {
    "mnist": Source(
        description="70,000 handwritten digits, 28×28",
        files={
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        samples={"train": 60_000, "test": 10_000},
        image=(1, mnist.SIDE, mnist.SIDE),
        unpack=mnist.unpack,
        read_split=mnist.read_split,
    ),
    "cifar10": Source(
        description="60,000 colour photographs of ten classes, 3×32×32",
        files={cifar.ARCHIVE: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        samples={"train": 50_000, "test": 10_000},
        image=(3, 32, 32),
        unpack=cifar.unpack,
        read_split=cifar.read_split,
    ),
}


def cache() -> Path:
    """Return the folder with the fetched data sets: $LABKIT_DATA, or the user's cache folder."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen)
    return user_cache_path("allreduce-lab")  # as pooch.os_cache, without importing pooch on every rank


def folder(name: str) -> Path:
    """Return the folder of one data set in the cache, whether it exists or not."""
    return cache() / name
