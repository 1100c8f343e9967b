"""Models: linear regression and softmax regression, each one linear layer and a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from labkit.nn import flat, ops


class Model(ABC):
    """A linear layer y = x W + b with a loss on top; the derived classes bring the loss.

    `params` and `grads` are flat, contiguous arrays of one dtype (float32 unless asked otherwise); W (I, O)
    and b (O,) are views into them.
    """

    name: str

    def __init__(self, inputs: int, outputs: int, seed: int, dtype: type[np.floating]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.shapes: dict[str, tuple[int, ...]] = {"W": (inputs, outputs), "b": (outputs,)}
        self.params = np.zeros(flat.size(self.shapes), dtype)
        self.grads = np.zeros_like(self.params)
        self._p, self._g = self.views(self.params), self.views(self.grads)
        # Variance 1/I keeps the outputs as large as the inputs (LeCun et al., Efficient BackProp, 1998).
        # Every rank draws the same weights. The name keeps this stream of numbers apart from all others of
        # the same seed: another layer's, or a data set's.
        self._p["W"][...] = np.random.default_rng([seed, *b"weights"]).normal(
            0, inputs**-0.5, (inputs, outputs)
        )

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts of a flat array laid out like `params`, by parameter name, as views."""
        return flat.views(vector, self.shapes)

    def named_parameters(self) -> dict[str, np.ndarray]:
        """Return the parameters by name, as views: writing to one changes the model."""
        return dict(self._p)

    def named_gradients(self) -> dict[str, np.ndarray]:
        """Return the gradients by parameter name, as views into `grads`."""
        return dict(self._g)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs of the layer. Shapes: x (N, I), N ≥ 1; result (N, O)."""
        self._check_input(x)
        return ops.linear(x, self._p["W"], self._p["b"])

    def loss(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return the mean loss over the batch; the gradient is left alone."""
        self.check(x, y)
        return self._loss(self.forward(x), y)

    def loss_and_gradient(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return the mean loss over the batch, and leave its gradient in `grads` (overwritten)."""
        self.check(x, y)
        out = self.forward(x)
        _, dw, db = ops.linear_backward(self._loss_backward(out, y), x, self._p["W"])
        self._g["W"][...] = dw
        self._g["b"][...] = db
        return self._loss(out, y)

    def check(self, x: np.ndarray, y: np.ndarray) -> None:
        """Raise a ValueError if the batch does not fit: the layer, what was expected, what came."""
        self._check_input(x)
        self._check_target(x, y)

    def _check_input(self, x: np.ndarray) -> None:
        if x.ndim != 2 or x.shape[1] != self.inputs or len(x) == 0:
            raise ValueError(
                f"layer {self.name!r}: x has shape {x.shape}, expected (batch, {self.inputs}) with batch ≥ 1 "
                f"for W of shape {self.shapes['W']}"
            )
        if x.dtype != self.params.dtype:
            raise ValueError(
                f"layer {self.name!r}: x is {x.dtype}, expected {self.params.dtype} as W; "
                f"convert it once: x.astype(np.{self.params.dtype})"
            )

    @abstractmethod
    def _check_target(self, x: np.ndarray, y: np.ndarray) -> None: ...

    @abstractmethod
    def _loss(self, out: np.ndarray, y: np.ndarray) -> float: ...

    @abstractmethod
    def _loss_backward(self, out: np.ndarray, y: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the model's answer for each sample."""


class LinearRegression(Model):
    """Linear regression under the mean squared error. Targets: (N, O), dtype of the model."""

    name = "linear"

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the predicted values. Shapes: x (N, I); result (N, O)."""
        return self.forward(x)

    def _check_target(self, x: np.ndarray, y: np.ndarray) -> None:
        # A target of shape (N,) would be broadcast against (N, 1) into (N, N) without a word.
        if y.shape != (len(x), self.outputs) or y.dtype != self.params.dtype:
            raise ValueError(
                f"layer {self.name!r}: the target has shape {y.shape} and dtype {y.dtype}, "
                f"expected {(len(x), self.outputs)} and {self.params.dtype}"
            )

    def _loss(self, out: np.ndarray, y: np.ndarray) -> float:
        return ops.mean_squared_error(out, y)

    def _loss_backward(self, out: np.ndarray, y: np.ndarray) -> np.ndarray:
        return ops.mean_squared_error_backward(out, y)


class SoftmaxRegression(Model):
    """Softmax regression under the cross-entropy. Targets: labels (N,), integers in 0 … O-1."""

    name = "softmax"

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the most probable class of each sample. Shapes: x (N, I); result (N,), int64."""
        return self.forward(x).argmax(axis=1)

    def _check_target(self, x: np.ndarray, y: np.ndarray) -> None:
        if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
            raise ValueError(
                f"layer {self.name!r}: the labels have shape {y.shape} and dtype {y.dtype}, "
                f"expected ({len(x)},) and integers"
            )
        if y.min() < 0 or y.max() >= self.outputs:
            raise ValueError(
                f"layer {self.name!r}: the labels span {y.min()} … {y.max()}, expected 0 … {self.outputs - 1}"
            )

    def _loss(self, out: np.ndarray, y: np.ndarray) -> float:
        return ops.softmax_cross_entropy(out, y)

    def _loss_backward(self, out: np.ndarray, y: np.ndarray) -> np.ndarray:
        return ops.softmax_cross_entropy_backward(out, y)


def linear_regression(
    features: int = 10, outputs: int = 1, seed: int = 0, dtype: type[np.floating] = np.float32
) -> LinearRegression:
    """Return a linear regression; the default is that of report A: 10 values in W, one in b."""
    return LinearRegression(features, outputs, seed, dtype)


def softmax_regression(
    features: int = 64, classes: int = 10, seed: int = 0, dtype: type[np.floating] = np.float32
) -> SoftmaxRegression:
    """Return a softmax regression; the default fits the digits: 8×8 pixels, ten classes."""
    return SoftmaxRegression(features, classes, seed, dtype)


# What `labkit train --model` knows: name → function of the numbers of inputs and outputs, and the seed.
MODELS: dict[str, Callable[[int, int, int], Model]] = {
    "linear": linear_regression,
    "softmax": softmax_regression,
}
