"""The models of the course, from one linear layer to VGG-11."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from labkit.nn.image_layers import AvgPool, BatchNorm, Conv2D, MaxPool
from labkit.nn.layers import Dense, Flatten, Layer, ReLU, Shape, Tanh
from labkit.nn.model import Classifier, Model, Regression

Float = type[np.floating]
NamedLayers = list[tuple[str, Layer]]


def linear_regression(
    features: int = 10, outputs: int = 1, seed: int = 0, dtype: Float = np.float32
) -> Regression:
    """Return a linear regression. Its default size is that of report A: 10 values in W, one in b."""
    return Regression("linear", [("linear", Dense(outputs))], (features,), seed, dtype)


def softmax_regression(
    features: int = 64, classes: int = 10, seed: int = 0, dtype: Float = np.float32
) -> Classifier:
    """Return a softmax regression. Its default size fits the digits data set: 8×8 pixels, ten classes."""
    return Classifier("softmax", [("softmax", Dense(classes))], (features,), seed, dtype)


def mlp(
    features: int = 64, classes: int = 10, seed: int = 0, dtype: Float = np.float32, hidden: int = 64
) -> Classifier:
    """Return a multilayer perceptron with one hidden layer of ReLU units. Samples: (features,)."""
    layers: NamedLayers = [("dense1", Dense(hidden, gain=2)), ("relu1", ReLU()), ("dense2", Dense(classes))]
    return Classifier("mlp", layers, (features,), seed, dtype)


def lenet5(
    image: Shape = (1, 32, 32), classes: int = 10, seed: int = 0, dtype: Float = np.float32
) -> Classifier:
    """Return LeNet-5 as in report E: 61,706 parameters for ten classes. Samples: images (1, 32, 32).

    Source: Y. LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998; but the
    second convolution connects all of its input and output channels.
    """
    layers: NamedLayers = [
        ("conv1", Conv2D(6, 5)),
        ("tanh1", Tanh()),
        ("pool1", AvgPool(2)),
        ("conv2", Conv2D(16, 5)),
        ("tanh2", Tanh()),
        ("pool2", AvgPool(2)),
        ("conv3", Conv2D(120, 5)),
        ("tanh3", Tanh()),
        ("flatten", Flatten()),
        ("dense1", Dense(84)),
        ("tanh4", Tanh()),
        ("dense2", Dense(classes)),
    ]
    return Classifier("lenet5", layers, image, seed, dtype)


def mnist_cnn(
    image: Shape = (1, 28, 28), classes: int = 10, seed: int = 0, dtype: Float = np.float32
) -> Classifier:
    """Return a small CNN like that of report D: 206,922 parameters. Samples: images (1, 28, 28).

    It has two 3×3 convolutions with ReLU, each followed by 2×2 max pooling, and two dense layers.
    """
    layers: NamedLayers = [
        ("conv1", Conv2D(16, 3, pad=1, gain=2)),
        ("relu1", ReLU()),
        ("pool1", MaxPool(2)),
        ("conv2", Conv2D(32, 3, pad=1, gain=2)),
        ("relu2", ReLU()),
        ("pool2", MaxPool(2)),
        ("flatten", Flatten()),
        ("dense1", Dense(128, gain=2)),
        ("relu3", ReLU()),
        ("dense2", Dense(classes)),
    ]
    return Classifier("mnist-cnn", layers, image, seed, dtype)


def vgg11(
    image: Shape = (3, 32, 32), classes: int = 10, seed: int = 0, dtype: Float = np.float32, width: int = 64
) -> Classifier:
    """Return VGG-11 with batch normalisation as in report C: 9,231,114 parameters. Samples: (3, 32, 32).

    `width` is the number of channels of the first convolution; the others have up to 8 times as many.
    Source: K. Simonyan, A. Zisserman, Very Deep Convolutional Networks, ICLR 2015, configuration A; for
    CIFAR-10, one dense layer replaces the three.
    """
    layers: NamedLayers = []
    for number, (times, pooled) in enumerate(
        [(1, 1), (2, 1), (4, 0), (4, 1), (8, 0), (8, 1), (8, 0), (8, 1)], start=1
    ):
        layers += [
            (f"conv{number}", Conv2D(times * width, 3, pad=1, gain=2)),
            (f"norm{number}", BatchNorm()),
        ]
        # Pooling first leaves the ReLU a quarter of the work and the same result: both are monotonic.
        if pooled:
            layers.append((f"pool{number}", MaxPool(2)))
        layers.append((f"relu{number}", ReLU()))
    layers += [("flatten", Flatten()), ("dense", Dense(classes))]
    return Classifier("vgg11", layers, image, seed, dtype)


# By name. Each function takes the size of one sample (features or shape), the number of outputs, and a seed.
MODELS: dict[str, Callable[..., Model]] = {
    "linear": linear_regression,
    "softmax": softmax_regression,
    "mlp": mlp,
    "lenet5": lenet5,
    "mnist-cnn": mnist_cnn,
    "vgg11": vgg11,
}
