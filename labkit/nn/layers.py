"""Layers: operations with parameters, and what the backward needs to remember of the forward.

A layer owns no parameters. The model that holds it gives it its part of each flat array, and the layer sees
it as views by short name: `p` (parameters), `g` (their gradients), `b` (buffers). `work` holds the arrays
that it uses again in every step.
"""

from __future__ import annotations

import numpy as np

from labkit.nn import flat, ops
from labkit.nn.ops import im2col, winograd
from labkit.nn.ops.convolution import Window
from labkit.nn.ops.pooling import pooled_shape
from labkit.nn.workspace import Workspace

Shape = tuple[int, ...]  # of one sample, without the batch
RUNNING = 0.1  # weight of a batch in the running statistics


class Layer:
    """What all layers have in common; a layer without parameters keeps most of it."""

    name = ""
    input_shape: Shape = ()
    first = False  # the first layer of a model: nobody asks for its dx

    def start(self, shape: Shape) -> Shape:
        """Take note of the shape of one input sample and return that of one output sample.

        A ValueError names the layer and both shapes if they do not fit.
        """
        self.input_shape = shape
        return shape

    def parameters(self) -> dict[str, Shape]:
        """Return the shapes of the parameters, by short name."""
        return {}

    def buffers(self) -> dict[str, Shape]:
        """Return the shapes of the buffers: numbers that are kept with a model, but have no gradient."""
        return {}

    def initialise(self, rng: np.random.Generator) -> None:
        """Draw the parameters that the layer starts from."""

    def bind(self, params: np.ndarray, grads: np.ndarray, buffers: np.ndarray, workspace: Workspace) -> None:
        """Take the layer's parts of the model's flat arrays to work with, and the work arrays."""
        self.p, self.g = flat.views(params, self.parameters()), flat.views(grads, self.parameters())
        self.b, self.workspace = flat.views(buffers, self.buffers()), workspace
        self.kept: tuple = ()

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        """Return y for a batch x (N, …), valid until the next call; remember what `backward` needs."""
        raise NotImplementedError

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        """Return dx, None for the first layer, and leave the gradients of the parameters in `g`.

        dy belongs to the layer, which may overwrite it.
        """
        raise NotImplementedError

    def check(self, x: np.ndarray) -> None:
        """Raise a ValueError, with the layer's name and the shapes, if a batch x does not fit."""
        if x.shape[1:] != self.input_shape or len(x) == 0:
            expected = ", ".join(map(str, ("batch", *self.input_shape)))
            holds = f" for W of shape {self.p['W'].shape}" if "W" in self.p else ""
            raise ValueError(
                f"layer {self.name!r}: x has shape {x.shape}, expected ({expected}) with batch ≥ 1{holds}"
            )

    def __getstate__(self) -> dict[str, object]:
        """Leave out of a copy or a pickle what the model gives the layer, and what it remembers."""
        return {k: v for k, v in vars(self).items() if k not in ("p", "g", "b", "work", "kept")}


class Dense(Layer):
    """y = x W + b. Shapes: x (N, I), W (I, O), b (O,); y (N, O).

    W starts with variance gain / I: 1 keeps the outputs as large as the inputs (LeCun et al., Efficient
    BackProp, 1998), 2 makes up for a ReLU behind it, which sets half of them to 0 (K. He et al., Delving Deep
    into Rectifiers, ICCV 2015).
    """

    def __init__(self, outputs: int, gain: float = 1) -> None:
        self.outputs, self.gain = outputs, gain

    def start(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ValueError(
                f"layer {self.name!r}: x is (batch, {shape}), expected (batch, features): flatten"
            )
        super().start(shape)
        return (self.outputs,)

    def parameters(self) -> dict[str, Shape]:
        return {"W": (*self.input_shape, self.outputs), "b": (self.outputs,)}

    def initialise(self, rng: np.random.Generator) -> None:
        inputs = self.p["W"].shape[0]
        self.p["W"][...] = rng.normal(0, (self.gain / inputs) ** 0.5, self.p["W"].shape)

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        self.kept = (x,)
        return ops.linear(x, self.p["W"], self.p["b"])

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        (x,) = self.kept
        np.matmul(x.T, dy, out=self.g["W"])  # ops.linear_backward, without dx where nobody asks for it
        dy.sum(axis=0, out=self.g["b"])
        return None if self.first else dy @ self.p["W"].T


class Conv2D(Layer):
    """A 2-D convolution, as `ops.conv2d`. Shapes: x (N, C, H, W), W (K, K, C, O), b (O,); y (N, O, H', W').

    W starts with variance gain / (K·K·C), as in `Dense`. Computed by Winograd's method where that fits and
    channels are many, else as columns.
    """

    def __init__(self, outputs: int, kernel: int, stride: int = 1, pad: int = 0, gain: float = 1) -> None:
        self.outputs, self.gain = outputs, gain
        self.window = Window(kernel, stride, pad)

    def start(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ValueError(
                f"layer {self.name!r}: x is (batch, {shape}), expected (batch, channels, height, width)"
            )
        super().start(shape)
        try:
            size = self.window.output_size(shape)
        except ValueError as error:
            raise ValueError(f"layer {self.name!r}: {error}") from None
        # Few channels are not worth the change of basis.
        self.winograd = shape[0] >= 16 and winograd.fits(self.window, shape)
        return (self.outputs, *size)

    def parameters(self) -> dict[str, Shape]:
        return {"W": (*self.window.kernel, self.input_shape[0], self.outputs), "b": (self.outputs,)}

    def initialise(self, rng: np.random.Generator) -> None:
        inputs = self.wb.shape[0] - 1
        self.p["W"][...] = rng.normal(0, (self.gain / inputs) ** 0.5, self.p["W"].shape)

    def bind(self, params: np.ndarray, grads: np.ndarray, buffers: np.ndarray, workspace: Workspace) -> None:
        super().bind(params, grads, buffers, workspace)
        # W and b lie one behind the other: together they are one matrix.
        self.wb, self.dwb = params.reshape(-1, self.outputs), grads.reshape(-1, self.outputs)

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        if self.winograd:
            y, v, u = winograd.forward(x, self.p["W"], self.p["b"], self.workspace)
            self.kept = v, u
        else:
            y, seen = im2col.forward(x, self.wb, self.window, self.workspace)
            self.kept = x.shape, seen
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        if self.winograd:
            v, u = self.kept
            return winograd.backward(dy, v, u, self.workspace, dw=self.g["W"], db=self.g["b"])
        shape, seen = self.kept
        im2col.backward_weights(dy, seen, self.dwb)
        return None if self.first else im2col.backward_input(dy, self.wb, shape, self.window, self.workspace)

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in super().__getstate__().items() if k not in ("wb", "dwb")}


class BatchNorm(Layer):
    """Batch normalisation, as `ops.batch_norm`. Shapes: x and y (N, C, H, W), gamma and beta (C,).

    In training by the statistics of the batch, otherwise by the running ones, which are its buffers:
    running ← 0.9 running + 0.1 batch, the variance divided by M - 1.
    """

    def start(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ValueError(
                f"layer {self.name!r}: x is (batch, {shape}), expected (batch, channels, height, width)"
            )
        return super().start(shape)

    def parameters(self) -> dict[str, Shape]:
        return {"gamma": self.input_shape[:1], "beta": self.input_shape[:1]}

    def buffers(self) -> dict[str, Shape]:
        return {"mean": self.input_shape[:1], "var": self.input_shape[:1]}

    def initialise(self, rng: np.random.Generator) -> None:
        self.p["gamma"][...] = 1
        self.b["var"][...] = 1

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        mean, var = self.b["mean"], self.b["var"]
        if training:
            m = x.size // x.shape[1]
            if m == 1:
                raise ValueError(
                    f"layer {self.name!r}: x has shape {x.shape}, expected more than one value a channel in "
                    "training: one has no variance"
                )
            mean, var = ops.batch_statistics(x)
            self.b["mean"] += RUNNING * (mean - self.b["mean"])
            self.b["var"] += RUNNING * (var * (m / (m - 1)) - self.b["var"])
        self.kept = x, mean, var
        return ops.batch_norm(x, self.p["gamma"], self.p["beta"], mean, var, out=self.workspace.like("y", x))

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        x, mean, var = self.kept
        dx, dgamma, dbeta = ops.batch_norm_backward(dy, x, self.p["gamma"], mean, var, out=dy)
        self.g["gamma"][...], self.g["beta"][...] = dgamma, dbeta
        return dx


class ReLU(Layer):
    """y = max(x, 0), any shape."""

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        y = ops.relu(x, self.workspace.like("y", x))
        self.kept = (y,)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        (y,) = self.kept
        return ops.relu_backward(dy, y, out=dy)


class Tanh(Layer):
    """y = tanh x, any shape."""

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        y = ops.tanh(x, self.workspace.like("y", x))
        self.kept = (y,)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        (y,) = self.kept
        return ops.tanh_backward(dy, y, self.workspace.like("dx", y))


class Pool(Layer):
    """What both kinds of pooling have in common. Shapes: x (N, C, H, W); y (N, C, H // k, W // k)."""

    def __init__(self, k: int) -> None:
        self.k = k

    def start(self, shape: Shape) -> Shape:
        if len(shape) != 3 or min(shape[1:]) < self.k:
            raise ValueError(
                f"layer {self.name!r}: x is (batch, {shape}), expected (batch, channels, height, width) with "
                f"height and width ≥ {self.k}"
            )
        super().start(shape)
        return pooled_shape((0, *shape), self.k)[1:]

    def _y(self, x: np.ndarray) -> np.ndarray:
        return self.workspace.like("y", x, pooled_shape(x.shape, self.k))


class AvgPool(Pool):
    """The mean of each k × k window."""

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        self.kept = (x,)
        return ops.avgpool(x, self.k, self._y(x))

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        (x,) = self.kept
        return ops.avgpool_backward(dy, x.shape, self.k, self.workspace.like("dx", x))


class MaxPool(Pool):
    """The maximum of each k × k window."""

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        y = ops.maxpool(x, self.k, self._y(x))
        self.kept = x, y
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        x, y = self.kept
        return ops.maxpool_backward(dy, x, y, self.k, self.workspace.like("dx", x))


class Flatten(Layer):
    """Each sample as one row. Shapes: x (N, …); y (N, product)."""

    def start(self, shape: Shape) -> Shape:
        super().start(shape)
        return (int(np.prod(shape)),)

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        self.kept = (x.shape,)
        return ops.flatten(x)

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        return ops.flatten_backward(dy, *self.kept)
