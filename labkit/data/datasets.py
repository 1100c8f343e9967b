"""The data sets, embedded or in files, each with a fixed split into training and test samples."""

from __future__ import annotations

import gzip
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from labkit.data.fetching import SOURCES, SPLITS, FetchError, fetch, is_cached, split_files

Shape = tuple[int, ...]
AT_A_TIME = 256  # images read at a time: small compared with a shard


def check_shape(name: str, shape: Shape | None, image: Shape) -> Shape:
    """Return the shape to convert each image to; flat if None. Raise ValueError, with all shapes, for others.

    `image` is the data set's own (channels, height, width). Every image is available flat, too, and grey ones
    as (1, 28, 28), (1, 32, 32) or, with three equal channels, (3, 32, 32).
    """
    flat = (math.prod(image),)
    available = [flat, image, (1, 28, 28), (1, 32, 32), (3, 32, 32)] if image[0] == 1 else [flat, image]
    shape = flat if shape is None else tuple(shape)
    if shape not in available:
        shapes = ", ".join(map(str, dict.fromkeys(available)))
        raise ValueError(f"data set {name!r} has no shape {shape}; available: {shapes}")
    return shape


def enlarge(images: np.ndarray, side: int) -> np.ndarray:
    """Return square images enlarged to side×side by bilinear interpolation.

    Shapes: images (n, h, h) float32; result (n, side, side) float32, within the range of the input.
    """
    old = images.shape[-1]
    # The centres of the new pixels in coordinates of the old ones, clipped at the edge.
    centres = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    left = np.minimum(centres.astype(int), old - 2)
    weights = np.zeros((side, old), np.float32)
    weights[np.arange(side), left] = 1 - (centres - left)
    weights[np.arange(side), left + 1] = centres - left
    return weights @ images @ weights.T


def scaled(pixels: np.ndarray, image: Shape, shape: Shape) -> np.ndarray:
    """Return images as float32 in 0 … 1, in another shape: padded with zeros on all sides, channels repeated.

    Shapes: pixels (n, channels·height·width) uint8; image (channels, height, width); result (n, *shape).
    """
    values = np.divide(pixels, 255, dtype=np.float32)
    if len(shape) == 1:
        return values
    values = values.reshape(-1, *image)
    edge = (shape[1] - image[1]) // 2
    if edge:  # MNIST at 32×32, the input size of LeNet-5
        values = np.pad(values, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    return np.broadcast_to(values, (len(values), *shape))


@dataclass(frozen=True)
class FileDataset:
    """One split of a fetched data set; `image` is the shape of an image in the file, `shape` that returned.

    Shape: labels (n,), int64.
    """

    images: Path
    labels: np.ndarray
    image: Shape
    shape: Shape

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the images and labels of these samples; keep nothing else of the file in memory.

        Shapes: indices (k,), in any order; x (k, *shape), float32 scaled from 0 … 255 to 0 … 1; y (k,),
        int64. Raise IndexError for an index out of range.
        """
        indices = np.asarray(indices)
        outside = indices[(indices < 0) | (indices >= len(self))]
        if len(outside):
            raise IndexError(f"sample {outside[0]}: expected 0 … {len(self) - 1}")
        y, order = self.labels[indices], np.argsort(indices)
        x = np.empty((len(indices), *self.shape), np.float32)
        for start in range(0, len(indices), AT_A_TIME):
            some = order[start : start + AT_A_TIME]
            # A map for each part: the pages that it has read count as this process's memory while it is open.
            pixels = np.memmap(self.images, np.uint8, "r").reshape(-1, math.prod(self.image))
            x[some] = scaled(pixels[indices[some]], self.image, self.shape)
            del pixels
        return x, y


def open_dataset(name: str, split: str = "train", shape: Shape | None = None) -> FileDataset:
    """Open a split ("train", "test") of "mnist" or "cifar10" after `fetch` or `labkit.comm.fetch`.

    Read all labels now; `take` reads images. `shape` is that of one image, as in `load`; flat if None. Raise
    FetchError if the data set is not in the cache.
    """
    if name not in SOURCES:
        raise ValueError(f"no data set {name!r} in files; available: {', '.join(SOURCES)}")
    if split not in SPLITS:
        raise ValueError(f"data set {name!r} has no split {split!r}; available: {', '.join(SPLITS)}")
    image = SOURCES[name].image
    shape = check_shape(name, shape, image)
    if not is_cached(name):
        raise FetchError(
            f"the data set {name!r} is not in the cache; fetch it with: labkit data fetch {name}"
        )
    images, labels = split_files(name, split)
    return FileDataset(images, np.fromfile(labels, np.uint8).astype(np.int64), image, shape)


DIGITS = Path(__file__).with_name("digits.csv.gz")  # its source and licence: digits.txt
DIGITS_SHA256 = "e31b7ccbf8cc2b158de948b1bb7a67bf39a856fb064b3aa8ef489f12a2dc4b63"
SHIFT = 1.25  # of outlying targets: large compared with the noise, as in report A


@dataclass(frozen=True)
class Dataset:
    """Samples and their targets, for training and test.

    Shapes: x (n, features) or, for images, (n, channels, height, width), float32; y (n, outputs), float32, or
    labels (n,), int64.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    @property
    def features(self) -> int:
        """Return the number of values in one sample."""
        return math.prod(self.x_train.shape[1:])

    @property
    def labelled(self) -> bool:
        """Return whether the targets are class labels (integers) rather than values."""
        return bool(np.issubdtype(self.y_train.dtype, np.integer))

    @property
    def outputs(self) -> int:
        """Return the number of outputs that a model needs: the number of classes, or of values to predict."""
        return int(self.y_train.max()) + 1 if self.labelled else int(self.y_train.shape[1])


def linear(
    n: int = 1000, features: int = 10, seed: int = 0, outlying: np.ndarray | slice | None = None
) -> Dataset:
    """Return synthetic linear data y = x w + b + noise: n training samples, n/4 test samples.

    x is uniform in 0 … 1; w and b are drawn once from the seed; the noise is normal with a standard deviation
    of 0.1. Shapes: x (n, features), y (n, 1), float32.

    `outlying` selects training samples (a slice or indices) from a shifted distribution: SHIFT is subtracted
    from their targets. If these samples are one rank's contiguous shard, the shards are non-i.i.d. as in
    report A, and this rank pulls the model away from the others. The other samples do not change.
    """
    rng = np.random.default_rng([seed, *b"linear data"])  # not the random numbers of a model with this seed
    w = rng.normal(0, features**-0.5, (features, 1))
    b = rng.normal(0, 0.1)
    total = n + n // 4
    x = rng.uniform(0, 1, (total, features))
    y = x @ w + b + rng.normal(0, 0.1, (total, 1))
    if outlying is not None:
        y[:n][outlying] -= SHIFT
    x, y = x.astype(np.float32), y.astype(np.float32)
    return Dataset("linear", x[:n], y[:n], x[n:], y[n:])


def report_a() -> Dataset:
    """Return linear data in the manner of report A: with four contiguous shards, rank 2's is outlying.

    With this seed, an untrained model of seed 0 fits the other shards about as well as the report's does.
    """
    return replace(linear(seed=22, outlying=slice(500, 750)), name="report-a")


def digits(shape: Shape | None = None) -> Dataset:
    """Return 1,797 handwritten digits, those of scikit-learn: 1,438 training samples and 359 for the test.

    Shapes: x (n, *shape), float32 scaled from 0 … 16 to 0 … 1: (64,), the 8×8 pixels row by row, if `shape`
    is None; or (1, 8, 8), or enlarged (1, 28, 28), (1, 32, 32) or, three channels alike, (3, 32, 32). y (n,),
    int64, 0 … 9. Every fifth sample is for the test: a split that no random number generator can change.
    The table is part of labkit; raises ValueError if the file is damaged.
    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits (test part), UCI, 1998,
    doi:10.24432/C50P49, licence CC BY 4.0.
    """
    shape = check_shape("digits", shape, (1, 8, 8))
    packed = DIGITS.read_bytes()
    digest = hashlib.sha256(packed).hexdigest()
    if digest != DIGITS_SHA256:
        raise ValueError(
            f"{DIGITS} is damaged: expected SHA-256 {DIGITS_SHA256}, found {digest}; install again"
        )
    rows = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.uint8)
    x, y = rows[:, :64].astype(np.float32) / 16, rows[:, 64].astype(np.int64)
    if len(shape) == 3:
        images = x.reshape(-1, 8, 8)
        images = enlarge(images, shape[1]) if shape[1] != 8 else images
        x = np.repeat(images[:, None], shape[0], axis=1)
    test = np.arange(len(x)) % 5 == 4
    return Dataset("digits", x[~test], y[~test], x[test], y[test])


def _from_files(name: str, shape: Shape | None = None) -> Dataset:
    check_shape(name, shape, SOURCES[name].image)  # before a long download
    fetch(name)
    splits = [open_dataset(name, split, shape) for split in SPLITS]
    (x, y), (x_test, y_test) = (split.take(np.arange(len(split))) for split in splits)
    return Dataset(name, x, y, x_test, y_test)


# Call each function without arguments or, for images, with the shape of a sample.
DATASETS: dict[str, Callable[..., Dataset]] = {
    "linear": linear,
    "report-a": report_a,
    "digits": digits,
    "mnist": partial(_from_files, "mnist"),
    "cifar10": partial(_from_files, "cifar10"),
}


def load(name: str, shape: Shape | None = None) -> Dataset:
    """Return the data set of that name; raise ValueError, with all names, if there is none.

    `shape` is that of one image, (channels, height, width), for data sets of images; flat if None. MNIST has
    60,000 training samples and 10,000 for the test, CIFAR-10 50,000 and 10,000, as split by their authors;
    their pixels are scaled from 0 … 255 to 0 … 1. MNIST's images of 28 × 28 are also available with an edge
    of zeros, (1, 32, 32), and with three channels alike, (3, 32, 32). Either set is fetched first if it is
    not in the cache; see `fetch` for the errors.
    Sources: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits; A. Krizhevsky, Learning
    Multiple Layers of Features from Tiny Images, 2009.
    """
    if name not in DATASETS:
        raise ValueError(f"no data set {name!r}; available: {', '.join(DATASETS)}")
    if shape is None:
        return DATASETS[name]()
    if name in ("linear", "report-a"):
        raise ValueError(f"data set {name!r} has no shape {tuple(shape)}: it has no images")
    return DATASETS[name](shape=shape)
