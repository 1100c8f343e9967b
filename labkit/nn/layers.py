"""Layers on vectors and element-wise layers: dense, ReLU, tanh and flatten."""

from __future__ import annotations

import numpy as np

from labkit.nn import ops
from labkit.nn.layer import Layer, Shape


class Dense(Layer):
    """y = x W + b. Shapes: x (N, I), W (I, O), b (O,); y (N, O).

    The initial weights have variance gain / I. A gain of 1 keeps the variance of y that of x (LeCun et al.,
    Efficient BackProp, 1998); a gain of 2 compensates for a ReLU after the layer, which sets half of y to 0
    (K. He et al., Delving Deep into Rectifiers, ICCV 2015).
    """

    def __init__(self, outputs: int, gain: float = 1) -> None:
        self.outputs, self.gain = outputs, gain

    def set_input_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ValueError(
                f"layer {self.name!r}: a sample of x has shape {shape}, expected (features,): flatten x first"
            )
        super().set_input_shape(shape)
        return (self.outputs,)

    def parameters(self) -> dict[str, Shape]:
        return {"W": (*self.input_shape, self.outputs), "b": (self.outputs,)}

    def initialise(self, rng: np.random.Generator) -> None:
        inputs = self.p["W"].shape[0]
        self.p["W"][...] = rng.normal(0, (self.gain / inputs) ** 0.5, self.p["W"].shape)

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        self.saved = (x,)
        return ops.linear(x, self.p["W"], self.p["b"])

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        (x,) = self.saved
        np.matmul(x.T, dy, out=self.g["W"])  # ops.linear_backward, but dx only where it is needed
        dy.sum(axis=0, out=self.g["b"])
        return None if self.first else dy @ self.p["W"].T


class ReLU(Layer):
    """y = max(x, 0). Shapes: any."""

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        y = ops.relu(x, self.workspace.like("y", x))
        self.saved = (y,)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        (y,) = self.saved
        return ops.relu_backward(dy, y, out=dy)


class Tanh(Layer):
    """y = tanh x. Shapes: any."""

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        y = ops.tanh(x, self.workspace.like("y", x))
        self.saved = (y,)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        (y,) = self.saved
        return ops.tanh_backward(dy, y, self.workspace.like("dx", y))


class Flatten(Layer):
    """Flatten each sample to one row. Shapes: x (N, …); y (N, product of the rest)."""

    def set_input_shape(self, shape: Shape) -> Shape:
        super().set_input_shape(shape)
        return (int(np.prod(shape)),)

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        self.saved = (x.shape,)
        return ops.flatten(x)

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        return ops.flatten_backward(dy, *self.saved)
