"""A model: layers one behind the other, a loss on top, and all parameters in one flat array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.nn import flat, ops
from labkit.nn.layers import Layer, Shape
from labkit.nn.workspace import Workspace


class Model(ABC):
    """Layers one behind the other, with a loss on top; the derived classes bring the loss.

    `params` and `grads` are flat, contiguous arrays of one dtype (float32 unless asked otherwise), and each
    layer's parameters and gradients are views into them, named "layer.W", or "W" where there is one layer.
    `buffers` is a third flat array, of what is kept with a model but has no gradient: the running statistics
    of batch normalisation. An optimiser moves params; who averages gradients over ranks must see to buffers
    as well.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[tuple[str, Layer]],
        input_shape: Shape,
        seed: int,
        dtype: type[np.floating],
    ) -> None:
        self.name = name
        self.layers = [layer for _, layer in layers]
        self.input_shape, shape = input_shape, input_shape
        for layer_name, layer in layers:
            layer.name = layer_name
            shape = layer.start(shape)
        self.layers[0].first = True
        (self.outputs,) = shape

        self.shapes = self._named([layer.parameters() for layer in self.layers])
        self.buffer_shapes = self._named([layer.buffers() for layer in self.layers])
        self.params = np.zeros(flat.size(self.shapes), dtype)
        self.grads = np.zeros_like(self.params)
        self.buffers = np.zeros(flat.size(self.buffer_shapes), dtype)
        self._bind()
        for layer_name, layer in layers:
            # The same weights on every rank; and a stream of numbers for each layer of its own, apart from
            # all others of the same seed: another layer's of equal shape, or a data set's.
            tag = b"weights" if len(layers) == 1 else b"weights " + layer_name.encode()
            layer.initialise(np.random.default_rng([seed, *tag]))

    @property
    def inputs(self) -> int:
        """How many values one sample has."""
        return int(np.prod(self.input_shape))

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts of a flat array laid out like `params`, by parameter name, as views."""
        return flat.views(vector, self.shapes)

    def named_parameters(self) -> dict[str, np.ndarray]:
        """Return the parameters by name, as views: writing to one changes the model."""
        return self.views(self.params)

    def named_gradients(self) -> dict[str, np.ndarray]:
        """Return the gradients by parameter name, as views into `grads`."""
        return self.views(self.grads)

    def named_buffers(self) -> dict[str, np.ndarray]:
        """Return the buffers by name, as views into `buffers`."""
        return flat.views(self.buffers, self.buffer_shapes)

    def move_gradients(self, place: np.ndarray) -> None:
        """Have the gradients live in `place` from now on, say memory that ranks share; it takes their values.

        Shapes: place as `grads`, flat, contiguous, writable and of its dtype, or a ValueError says what came.
        """
        fits = place.flags.c_contiguous and place.flags.writeable
        if (place.shape, place.dtype) != (self.grads.shape, self.grads.dtype) or not fits:
            raise ValueError(
                f"expected a contiguous, writable array of shape {self.grads.shape} and {self.grads.dtype} "
                f"for the gradients, got one of shape {place.shape} and {place.dtype}, "
                f"{'contiguous' if place.flags.c_contiguous else 'not contiguous'}, "
                f"{'writable' if place.flags.writeable else 'read-only'}"
            )
        if place is self.grads:
            return
        place[...] = self.grads
        self.grads = place
        self._bind()

    def forward(self, x: np.ndarray, training: bool = False) -> np.ndarray:
        """Return the outputs of the last layer. Shapes: x (N, …), N ≥ 1; result (N, O).

        In training, batch normalisation uses the statistics of the batch, and takes them into its buffers.
        """
        self._check_input(x)
        return self._run(x, training)

    def loss(self, x: np.ndarray, y: np.ndarray, training: bool = False) -> float:
        """Return the mean loss over the batch; the gradient is left alone."""
        self.check(x, y)
        return self._loss(self._run(x, training), y)

    def loss_and_gradient(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return the mean loss over the batch in training; leave its gradient in `grads` (overwritten)."""
        self.check(x, y)
        out = self._run(x, training=True)
        dy: np.ndarray | None = self._loss_backward(out, y)
        for layer in reversed(self.layers):
            if dy is None:
                raise RuntimeError(
                    f"layer {layer.name!r}: no gradient from above; only the first returns none"
                )
            dy = layer.backward(dy)
        return self._loss(out, y)

    def check(self, x: np.ndarray, y: np.ndarray) -> None:
        """Raise a ValueError if the batch does not fit: the layer, what was expected, what came."""
        self._check_input(x)
        self._check_target(x, y)

    def _run(self, x: np.ndarray, training: bool) -> np.ndarray:
        """Return the outputs for a batch that has been checked."""
        for layer in self.layers:
            x = layer.forward(x, training)
        return x

    def _check_input(self, x: np.ndarray) -> None:
        first = self.layers[0]
        first.check(x)
        if x.dtype != self.params.dtype:
            raise ValueError(
                f"layer {first.name!r}: x is {x.dtype}, expected {self.params.dtype} as W; "
                f"convert it once: x.astype(np.{self.params.dtype})"
            )
        if not np.isfinite(x).all():
            raise ValueError(
                f"layer {first.name!r}: x of shape {x.shape} holds NaN or infinite values "
                f"({np.count_nonzero(~np.isfinite(x))}), expected none"
            )

    def _named(self, by_layer: list[dict[str, Shape]]) -> dict[str, Shape]:
        """Return the shapes that each layer gives by short name, by full name."""
        alone = len(self.layers) == 1
        return {
            short if alone else f"{layer.name}.{short}": shape
            for layer, shapes in zip(self.layers, by_layer, strict=True)
            for short, shape in shapes.items()
        }

    def _bind(self) -> None:
        """Give each layer its part of the flat arrays."""
        scratch, param, buffer = Workspace(), 0, 0
        for layer in self.layers:
            params, buffers = flat.size(layer.parameters()), flat.size(layer.buffers())
            mine, kept = slice(param, param + params), slice(buffer, buffer + buffers)
            layer.bind(self.params[mine], self.grads[mine], self.buffers[kept], Workspace(scratch))
            param, buffer = mine.stop, kept.stop

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the layers of a copy look into the copy's arrays."""
        vars(self).update(state)
        self._bind()

    @abstractmethod
    def _check_target(self, x: np.ndarray, y: np.ndarray) -> None: ...

    @abstractmethod
    def _loss(self, out: np.ndarray, y: np.ndarray) -> float: ...

    @abstractmethod
    def _loss_backward(self, out: np.ndarray, y: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the model's answer for each sample."""


class Regression(Model):
    """A model under the mean squared error. Targets: (N, O), dtype of the model."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the predicted values. Shapes: x (N, …); result (N, O)."""
        return self.forward(x)

    def _check_target(self, x: np.ndarray, y: np.ndarray) -> None:
        # A target of shape (N,) would be broadcast against (N, 1) into (N, N) without a word.
        if y.shape != (len(x), self.outputs) or y.dtype != self.params.dtype:
            raise ValueError(
                f"layer {self.layers[-1].name!r}: the target has shape {y.shape} and dtype {y.dtype}, "
                f"expected {(len(x), self.outputs)} and {self.params.dtype}"
            )

    def _loss(self, out: np.ndarray, y: np.ndarray) -> float:
        return ops.mean_squared_error(out, y)

    def _loss_backward(self, out: np.ndarray, y: np.ndarray) -> np.ndarray:
        return ops.mean_squared_error_backward(out, y)


class Classifier(Model):
    """A model under softmax and the cross-entropy. Targets: labels (N,), integers in 0 … O-1."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the most probable class of each sample. Shapes: x (N, …); result (N,), int64."""
        return self.forward(x).argmax(axis=1)

    def _check_target(self, x: np.ndarray, y: np.ndarray) -> None:
        last = self.layers[-1].name
        if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
            raise ValueError(
                f"layer {last!r}: the labels have shape {y.shape} and dtype {y.dtype}, "
                f"expected ({len(x)},) and integers"
            )
        if y.min() < 0 or y.max() >= self.outputs:
            raise ValueError(
                f"layer {last!r}: the labels span {y.min()} … {y.max()}, expected 0 … {self.outputs - 1} "
                f"(labels of shape {y.shape})"
            )

    def _loss(self, out: np.ndarray, y: np.ndarray) -> float:
        return ops.softmax_cross_entropy(out, y)

    def _loss_backward(self, out: np.ndarray, y: np.ndarray) -> np.ndarray:
        return ops.softmax_cross_entropy_backward(out, y)
