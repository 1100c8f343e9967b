"""The data sets, each with a fixed split into training and test samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SHIFT = 1.25  # of outlying targets: large beside the noise, as in report A


@dataclass(frozen=True)
class Dataset:
    """Samples and their targets. x float32 (n, features); y float32 (n, outputs) or int64 labels (n,)."""

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    @property
    def features(self) -> int:
        """How many values one sample has."""
        return int(self.x_train.shape[1])

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


def digits() -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits: 1,438 training samples and 359 for the test.

    Shapes: x (n, 64), the 8×8 pixels row by row, float32 scaled from 0 … 16 to 0 … 1; y (n,), int64, 0 … 9.
    Every fifth sample is for the test: a split that no random number generator can change.
    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits (test part), UCI, 1998.
    """
    # Slow to import (it brings SciPy), so only where it is needed.
    from sklearn.datasets import load_digits  # noqa: PLC0415

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    test = np.arange(len(x)) % 5 == 4
    return Dataset("digits", x[~test], y[~test], x[test], y[test])


# Each function is called without arguments.
DATASETS: dict[str, Callable[[], Dataset]] = {"linear": linear, "digits": digits}


def load(name: str) -> Dataset:
    """Return the data set of that name; a ValueError names those there are."""
    if name not in DATASETS:
        raise ValueError(f"no data set {name!r}: there are {', '.join(DATASETS)}")
    return DATASETS[name]()
