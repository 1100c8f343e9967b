"""Small models and samples for the checks of training."""

from __future__ import annotations

import numpy as np

from labkit.nn import Model
from labkit.nn.image_layers import BatchNorm, Conv2D
from labkit.nn.layers import Dense, Flatten, Tanh
from labkit.nn.model import Classifier


def labelled(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n samples of 6 features, and the label that the largest of the first three has."""
    x = np.random.default_rng(5).uniform(0, 1, (n, 6)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1)


def normalised(shape: tuple[int, int, int] = (1, 2, 3), outputs: int = 3) -> Model:
    """Return a classifier of small images with batch normalisation, so with buffers."""
    layers = [
        ("conv1", Conv2D(2, 1)),
        ("norm1", BatchNorm()),
        ("flat", Flatten()),
        ("dense1", Dense(outputs)),
    ]
    return Classifier("normalised", layers, shape, 0, np.float32)


def convolutional() -> Model:
    """Return a small classifier of 8×8 digits with several layers and no buffers."""
    layers = [("conv1", Conv2D(2, 3)), ("tanh1", Tanh()), ("flat", Flatten()), ("dense1", Dense(10))]
    return Classifier("convolutional", layers, (1, 8, 8), 0, np.float32)
