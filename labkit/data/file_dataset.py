"""Data sets in files: all labels are in memory, images are read on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.data.errors import FetchError
from labkit.data.fetching import is_cached
from labkit.data.formats.rows import RowFile, read_rows
from labkit.data.images import Shape, check_shape, scaled
from labkit.data.sources import SOURCES, folder


@dataclass(frozen=True)
class FileDataset:
    """One split of a fetched data set; `image` is the shape of an image in the file, `shape` that returned.

    Shape: labels (n,), int64.
    """

    files: Sequence[RowFile]
    labels: np.ndarray
    image: Shape
    shape: Shape

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the images and labels of these samples; keep nothing else of the files in memory.

        Shapes: indices (k,), in any order; x (k, *shape), float32 scaled from 0 … 255 to 0 … 1; y (k,),
        int64. Raise IndexError for an index out of range.
        """
        indices = np.asarray(indices)
        x = np.empty((len(indices), *self.shape), np.float32)
        pixels = int(np.prod(self.image))
        for positions, block in read_rows(self.files, indices):
            x[positions] = scaled(block[:, -pixels:], self.image, self.shape)
        return x, self.labels[indices]


def open_dataset(name: str, split: str = "train", shape: Shape | None = None) -> FileDataset:
    """Open a split ("train", "test") of "mnist" or "cifar10" after `fetch` or `labkit.comm.fetch`.

    Read all labels now; `take` reads images. `shape` is that of one image, as in `load`; flat if None. Raise
    FetchError if the data set is not in the cache, FormatError if a file is damaged.
    """
    if name not in SOURCES:
        raise ValueError(f"no data set {name!r} in files; available: {', '.join(SOURCES)}")
    source = SOURCES[name]
    if split not in source.samples:
        raise ValueError(f"data set {name!r} has no split {split!r}; available: {', '.join(source.samples)}")
    shape = check_shape(name, shape, source.image)
    if not is_cached(name):
        raise FetchError(
            f"the data set {name!r} is not in the cache; fetch it with: labkit data fetch {name}"
        )
    files, labels = source.read_split(folder(name), split)
    return FileDataset(files, labels.astype(np.int64), source.image, shape)
