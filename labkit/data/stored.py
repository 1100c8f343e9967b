"""A data set that lies in files: its labels at once, its images as far as they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.data import rows
from labkit.data.errors import FetchError
from labkit.data.fetching import is_cached
from labkit.data.pictures import Shape, check_shape, scaled
from labkit.data.sources import SOURCES, folder


@dataclass(frozen=True)
class Stored:
    """One part of a fetched set. `labels` (n,), int64; `shape` is that of one image once it is read."""

    files: Sequence[rows.Rows]
    labels: np.ndarray
    image: Shape
    shape: Shape

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the images and labels of these samples; nothing else of the files is held in memory.

        Shapes: indices (k,), in any order; x (k, *shape), float32 scaled from 0 … 255 to 0 … 1; y (k,),
        int64. An IndexError names an index that is not in the set.
        """
        indices = np.asarray(indices)
        x = np.empty((len(indices), *self.shape), np.float32)
        pixels = int(np.prod(self.image))
        for places, block in rows.read(self.files, indices):
            x[places] = scaled(block[:, -pixels:], self.image, self.shape)
        return x, self.labels[indices]


def stored(name: str, part: str = "train", shape: Shape | None = None) -> Stored:
    """Open a part ("train", "test") of "mnist" or "cifar10", fetched before (`fetch`, or labkit.comm.fetch).

    Reads the labels; images are read by `take`. `shape`: flat if None, or as `load` says. A FetchError if
    the set is not in the cache, a FormatError that names file and offset if it is damaged.
    """
    if name not in SOURCES:
        raise ValueError(f"no data set {name!r} in files: there are {', '.join(SOURCES)}")
    source = SOURCES[name]
    if part not in source.samples:
        raise ValueError(f"no part {part!r} of {name!r}: there are {', '.join(source.samples)}")
    shape = check_shape(name, shape, source.image)
    if not is_cached(name):
        raise FetchError(
            f"the data set {name!r} is not in the cache; labkit data fetch {name} brings it there"
        )
    files, labels = source.part(folder(name), part)
    return Stored(files, labels.astype(np.int64), source.image, shape)
