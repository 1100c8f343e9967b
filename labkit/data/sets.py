"""The data sets, each with a fixed split into training and test samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution

import numpy as np

from labkit.data.fetching import fetch
from labkit.data.pictures import Shape, check_shape, enlarge
from labkit.data.sources import SOURCES
from labkit.data.stored import stored

SHIFT = 1.25  # of outlying targets: large beside the noise, as in report A


@dataclass(frozen=True)
class Dataset:
    """Samples and their targets.

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
        """How many values one sample has."""
        return math.prod(self.x_train.shape[1:])

    @property
    def labelled(self) -> bool:
        """Whether the targets are class labels (integers) rather than values."""
        return bool(np.issubdtype(self.y_train.dtype, np.integer))

    @property
    def outputs(self) -> int:
        """How many outputs a model of it needs: the number of classes, or of values to predict."""
        return int(self.y_train.max()) + 1 if self.labelled else int(self.y_train.shape[1])


def linear(
    n: int = 1000, features: int = 10, seed: int = 0, outlying: np.ndarray | slice | None = None
) -> Dataset:
    """Return synthetic linear data y = x w + b + noise: n training samples, n/4 for the test.

    x is uniform in 0 … 1; w and b are drawn once from the seed; the noise is normal with a standard deviation
    of 0.1. Shapes: x (n, features), y (n, 1), float32.

    `outlying` picks training samples (a slice or indices) that come from a shifted distribution: their
    targets lie lower by SHIFT. With one rank's contiguous shard it makes the case of report A: that rank
    pulls all the others its way. The other samples are the same with and without.
    """
    rng = np.random.default_rng([seed, *b"linear data"])  # not the numbers of a model with the same seed
    w = rng.normal(0, features**-0.5, (features, 1))
    b = rng.normal(0, 0.1)
    total = n + n // 4
    x = rng.uniform(0, 1, (total, features))
    y = x @ w + b + rng.normal(0, 0.1, (total, 1))
    if outlying is not None:
        y[:n][outlying] -= SHIFT
    x, y = x.astype(np.float32), y.astype(np.float32)
    return Dataset("linear", x[:n], y[:n], x[n:], y[n:])


def digits(shape: Shape | None = None) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits: 1,438 training samples and 359 for the test.

    Shapes: x (n, *shape), float32 scaled from 0 … 16 to 0 … 1: (64,), the 8×8 pixels row by row, if `shape`
    is None; or (1, 8, 8), or enlarged (1, 28, 28), (1, 32, 32) or, three channels alike, (3, 32, 32). y (n,),
    int64, 0 … 9. Every fifth sample is for the test: a split that no random number generator can change.
    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits (test part), UCI, 1998.
    """
    shape = check_shape("digits", shape, (1, 8, 8))
    # The table that scikit-learn ships; to import scikit-learn would cost every rank a second.
    table = str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz"))
    rows = np.loadtxt(table, delimiter=",", dtype=np.uint8)
    x, y = rows[:, :64].astype(np.float32) / 16, rows[:, 64].astype(np.int64)
    if len(shape) == 3:
        pictures = x.reshape(-1, 8, 8)
        pictures = enlarge(pictures, shape[1]) if shape[1] != 8 else pictures
        x = np.repeat(pictures[:, None], shape[0], axis=1)
    test = np.arange(len(x)) % 5 == 4
    return Dataset("digits", x[~test], y[~test], x[test], y[test])


def mnist(shape: Shape | None = None) -> Dataset:
    """Return MNIST: 60,000 training samples and 10,000 for the test, as its authors split them.

    Shapes: x (n, *shape), float32 scaled from 0 … 255 to 0 … 1: (784,), row by row, if `shape` is None; or
    (1, 28, 28), or with an edge of zeros (1, 32, 32) or, three channels alike, (3, 32, 32). y (n,), int64,
    0 … 9. Fetched first if it is not in the cache: see `fetch` for the errors.
    Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
    """
    return _from_files("mnist", shape)


def cifar10(shape: Shape | None = None) -> Dataset:
    """Return CIFAR-10: 50,000 training samples and 10,000 for the test, as its authors split them.

    Shapes: x (n, *shape), float32 scaled from 0 … 255 to 0 … 1: (3072,), all red values row by row, then
    green, then blue, if `shape` is None; or (3, 32, 32). y (n,), int64, 0 … 9. Fetched first if it is not in
    the cache: see `fetch` for the errors.
    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    return _from_files("cifar10", shape)


def _from_files(name: str, shape: Shape | None) -> Dataset:
    check_shape(name, shape, SOURCES[name].image)  # before a long download
    fetch(name)
    parts = [stored(name, part, shape) for part in ("train", "test")]
    (x, y), (x_test, y_test) = (part.take(np.arange(len(part))) for part in parts)
    return Dataset(name, x, y, x_test, y_test)


# Each function is called without arguments, or with the shape of a sample.
DATASETS: dict[str, Callable[..., Dataset]] = {
    "linear": linear,
    "digits": digits,
    "mnist": mnist,
    "cifar10": cifar10,
}


def load(name: str, shape: Shape | None = None) -> Dataset:
    """Return the data set of that name; a ValueError names those there are.

    `shape`: of one image, (channels, height, width), for the sets that have images; flat if None.
    """
    if name not in DATASETS:
        raise ValueError(f"no data set {name!r}: there are {', '.join(DATASETS)}")
    if shape is None:
        return DATASETS[name]()
    if name == "linear":
        raise ValueError(f"no shape {tuple(shape)} for 'linear': it has no images")
    return DATASETS[name](shape=shape)
