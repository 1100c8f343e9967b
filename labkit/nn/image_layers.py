"""Layers on images: convolution, batch normalisation and pooling."""

from __future__ import annotations

import numpy as np

from labkit.nn import ops
from labkit.nn.layers import Layer, Shape
from labkit.nn.ops import direct, im2col, winograd
from labkit.nn.ops.convolution import ConvGeometry
from labkit.nn.ops.pooling import pooled_shape
from labkit.nn.ops.workspace import Workspace

STATISTICS_MOMENTUM = 0.1  # weight of the newest batch in the running statistics; PyTorch's `momentum`
WINOGRAD_FROM = 16  # input channels; with fewer, the change of basis costs more than it saves


class Conv2D(Layer):
    """2-D convolution, as `ops.conv2d`. Shapes: x (N, C, H, W), W (K, K, C, O), b (O,); y (N, O, H', W').

    The initial weights have variance gain / (K·K·C), as in `Dense`. Winograd convolution computes it where
    that fits and there are many channels, direct products where images are smaller than the kernel; otherwise
    im2col does.
    """

    def __init__(self, outputs: int, kernel: int, stride: int = 1, pad: int = 0, gain: float = 1) -> None:
        self.outputs, self.gain = outputs, gain
        self.geometry = ConvGeometry(kernel, stride, pad)

    def set_input_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise self.unfit(shape, "(channels, height, width)")
        super().set_input_shape(shape)
        try:
            size = self.geometry.output_size(shape)
        except ValueError as error:
            raise ValueError(f"layer {self.name!r}: {error}") from None
        self.direct = direct.fits(self.geometry, shape)
        self.winograd = not self.direct and shape[0] >= WINOGRAD_FROM and winograd.fits(self.geometry, shape)
        return (self.outputs, *size)

    def parameters(self) -> dict[str, Shape]:
        k = self.geometry.k
        return {"W": (k, k, self.input_shape[0], self.outputs), "b": (self.outputs,)}

    def initialise(self, rng: np.random.Generator) -> None:
        inputs = self.wb.shape[0] - 1
        self.p["W"][...] = rng.normal(0, (self.gain / inputs) ** 0.5, self.p["W"].shape)

    def bind(self, params: np.ndarray, grads: np.ndarray, buffers: np.ndarray, workspace: Workspace) -> None:
        super().bind(params, grads, buffers, workspace)
        # W and b are next to each other in the flat arrays, so together they are one matrix.
        self.wb, self.dwb = params.reshape(-1, self.outputs), grads.reshape(-1, self.outputs)

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        if self.direct:
            y, x_by_position = direct.forward(x, self.p["W"], self.p["b"], self.workspace)
            self.saved = (x_by_position,)
        elif self.winograd:
            y, v, u = winograd.forward(x, self.p["W"], self.p["b"], self.workspace)
            self.saved = v, u
        else:
            y, columns = im2col.forward(x, self.wb, self.geometry, self.workspace)
            self.saved = x.shape, columns
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        if self.direct:
            (x,) = self.saved
            return direct.backward(dy, x, self.p["W"], self.workspace, dw=self.g["W"], db=self.g["b"])
        if self.winograd:
            v, u = self.saved
            return winograd.backward(dy, v, u, self.workspace, dw=self.g["W"], db=self.g["b"])
        shape, columns = self.saved
        im2col.backward_weights(dy, columns, self.dwb)
        return (
            None if self.first else im2col.backward_input(dy, self.wb, shape, self.geometry, self.workspace)
        )

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in super().__getstate__().items() if k not in ("wb", "dwb")}


class BatchNorm(Layer):
    """Batch normalisation, as `ops.batch_norm`. Shapes: x and y (N, C, H, W), gamma and beta (C,).

    In training it uses the statistics of the batch, otherwise the running statistics. These are its buffers:
    running ← 0.9 running + 0.1 batch, where the batch's variance is divided by M - 1, as in PyTorch.
    """

    def set_input_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise self.unfit(shape, "(channels, height, width)")
        return super().set_input_shape(shape)

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
                    f"layer {self.name!r}: x has shape {x.shape}, expected more than one value per "
                    "channel in training: a single value has no variance"
                )
            mean, var = ops.batch_statistics(x)
            self.b["mean"] += STATISTICS_MOMENTUM * (mean - self.b["mean"])
            self.b["var"] += STATISTICS_MOMENTUM * (var * (m / (m - 1)) - self.b["var"])
        self.saved = x, mean, var
        return ops.batch_norm(x, self.p["gamma"], self.p["beta"], mean, var, out=self.workspace.like("y", x))

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        x, mean, var = self.saved
        dx, dgamma, dbeta = ops.batch_norm_backward(dy, x, self.p["gamma"], mean, var, out=dy)
        self.g["gamma"][...], self.g["beta"][...] = dgamma, dbeta
        return dx


class Pool(Layer):
    """Base class of the pooling layers. Shapes: x (N, C, H, W); y (N, C, H // k, W // k)."""

    def __init__(self, k: int) -> None:
        self.k = k

    def set_input_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or min(shape[1:]) < self.k:
            raise self.unfit(shape, f"(channels, height, width) with height and width ≥ {self.k}")
        super().set_input_shape(shape)
        return pooled_shape((0, *shape), self.k)[1:]

    def _y(self, x: np.ndarray) -> np.ndarray:
        return self.workspace.like("y", x, pooled_shape(x.shape, self.k))


class AvgPool(Pool):
    """Average pooling: y is the mean of each k × k window."""

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        self.saved = (x,)
        return ops.avgpool(x, self.k, self._y(x))

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        (x,) = self.saved
        return ops.avgpool_backward(dy, x.shape, self.k, self.workspace.like("dx", x))


class MaxPool(Pool):
    """Max pooling: y is the maximum of each k × k window."""

    def forward(self, x: np.ndarray, training: bool) -> np.ndarray:
        y = ops.maxpool(x, self.k, self._y(x))
        self.saved = x, y
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        x, y = self.saved
        return ops.maxpool_backward(dy, x, y, self.k, self.workspace.like("dx", x))
