"""Where the files of the big data sets come from, how to know them, and where they are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from labkit.data import cifar, mnist
from labkit.data.rows import Rows

CACHE = "LABKIT_DATA"  # the environment variable that names another cache folder


@dataclass(frozen=True)
class Source:
    """A data set that has to be fetched.

    `files`: name → SHA-256 of the original. `mirrors`: addresses that hold them all, the first one first.
    `samples`: how many each part has. `image`: their shape (channels, height, width). `unpack` and `part`:
    the format's (see labkit.data.mnist); of a row's bytes, the image is the last ones.
    """

    says: str
    files: Mapping[str, str]
    mirrors: tuple[str, ...]
    samples: Mapping[str, int]
    image: tuple[int, int, int]
    unpack: Callable[[Path], list[Path]]
    part: Callable[[Path, str], tuple[list[Rows], np.ndarray]]


SOURCES: dict[str, Source] = {
    "mnist": Source(
        says="70,000 handwritten digits, 28×28",
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
        part=mnist.part,
    ),
    "cifar10": Source(
        says="60,000 colour photographs of ten kinds of things, 3×32×32",
        files={cifar.ARCHIVE: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        samples={"train": 50_000, "test": 10_000},
        image=(3, 32, 32),
        unpack=cifar.unpack,
        part=cifar.part,
    ),
}


def cache() -> Path:
    """Return the folder that holds the fetched sets: $LABKIT_DATA, or the user's cache folder."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen)
    return user_cache_path("allreduce-lab")  # as pooch.os_cache, without pooch's memory on every rank


def folder(name: str) -> Path:
    """Return the folder of one set in the cache, whether it is there or not."""
    return cache() / name
