"""The base class of all layers, and layers on vectors and element-wise layers: dense, ReLU, tanh and flatten.

A layer is an operation, its parameters, and the activations kept for the backward pass. It owns no
parameters. The model gives it its part of each flat array, and the layer holds views of it by short name: `p`
(parameters), `g` (their gradients), `b` (buffers).
"""

from __future__ import annotations

import numpy as np

from labkit.nn import flat, ops
from labkit.nn.ops.workspace import Workspace

Shape = tuple[int, ...]  # of one sample, without the batch axis


class Layer:
    """Base class; a layer without parameters overrides little more than `forward` and `backward`."""

    name = ""
    input_shape: Shape = ()
    first = False  # the first layer of a model: its dx is not needed

    def set_input_shape(self, shape: Shape) -> Shape:
        """Set the shape of one input sample and return the shape of one output sample.

        Raise ValueError, with the layer's name, the shape and what was expected, if the layer cannot take it.
        """
        self.input_shape = shape
        return shape

    def parameters(self) -> dict[str, Shape]:
        """Return the shapes of the parameters by short name."""
        return {}

    def buffers(self) -> dict[str, Shape]:
        """Return the shapes of the buffers by short name: saved with the model, but without a gradient."""
        return {}

    def initialise(self, rng: np.random.Generator) -> None:
        """Set the initial values of parameters and buffers; they are 0 before."""

    def bind(self, params: np.ndarray, grads: np.ndarray, buffers: np.ndarray, workspace: Workspace) -> None:
        """Take this layer's parts of the model's flat arrays, and a workspace."""
        self.p, self.g = flat.views(params, self.parameters()), flat.views(grads, self.parameters())
        self.b, self.workspace = flat.views(buffers, self.buffers()), workspace
        self.saved: tuple = ()

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        """Return y for a batch x (N, …), valid until the next call; save what `backward` needs."""
        raise NotImplementedError

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        """Return dx, or None from the first layer, and write the gradients of the parameters to `g`.

        The layer may overwrite dy.
        """
        raise NotImplementedError

    def check(self, x: np.ndarray) -> None:
        """Raise ValueError, with the layer's name and the shapes, unless x is a batch for this layer."""
        if x.shape[1:] != self.input_shape or len(x) == 0:
            expected = ", ".join(map(str, ("batch", *self.input_shape)))
            weights = f" for W of shape {self.p['W'].shape}" if "W" in self.p else ""
            raise ValueError(
                f"layer {self.name!r}: x has shape {x.shape}, expected ({expected}) with batch ≥ 1{weights}"
            )

    def unfit(self, shape: Shape, expected: str) -> ValueError:
        """Return the error for samples of a shape that the layer cannot take."""
        return ValueError(f"layer {self.name!r}: a sample of x has shape {shape}, expected {expected}")

    def __getstate__(self) -> dict[str, object]:
        """Leave the model's arrays, the workspace and the saved activations out of copies and pickles."""
        return {k: v for k, v in vars(self).items() if k not in ("p", "g", "b", "workspace", "saved")}


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
            raise self.unfit(shape, "(features,): flatten x first")
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
