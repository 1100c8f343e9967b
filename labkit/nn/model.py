"""Models: a sequence of layers and a loss, with all parameters in one flat array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.nn import flat, ops
from labkit.nn.layers import Layer, Shape
from labkit.nn.ops.workspace import Workspace


class Model(ABC):
    """A sequence of layers with a loss; the derived classes define the loss.

    `params` and `grads` are flat, contiguous arrays of the same dtype. Each layer's parameters and gradients
    are views into them, named "layer.W", or just "W" in a model of one layer. `buffers` is a third flat
    array, of numbers that belong to the model but have no gradient: the running statistics of batch
    normalisation. An optimiser updates `params` only; code that averages gradients over ranks has to average
    or broadcast `buffers` itself.
    """

    _loss: Callable[[np.ndarray, np.ndarray], float]
    _loss_backward: Callable[[np.ndarray, np.ndarray], np.ndarray]

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
            shape = layer.set_input_shape(shape)
        self.layers[0].first = True
        (self.outputs,) = shape

        self.shapes = self._named([layer.parameters() for layer in self.layers])
        self.buffer_shapes = self._named([layer.buffers() for layer in self.layers])
        self.params = np.zeros(flat.size(self.shapes), dtype)
        self.grads = np.zeros_like(self.params)
        self.buffers = np.zeros(flat.size(self.buffer_shapes), dtype)
        self.correct = 0
        # Called before each layer's forward (True) and backward pass (False), with the layer's number.
        self.before_layer: Callable[[int, bool], None] | None = None
        self._bind()
        for layer_name, layer in layers:
            # The seed gives the same weights on every rank. The tag gives each layer its own random stream,
            # so that it differs from other layers of the same shape and from data sets with the same seed.
            tag = b"weights" if len(layers) == 1 else b"weights " + layer_name.encode()
            layer.initialise(np.random.default_rng([seed, *tag]))

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return views by parameter name into a flat array with the layout of `params`."""
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

    def move_gradients(self, array: np.ndarray) -> None:
        """Keep the gradients in `array` from now on, such as memory that ranks share; copy them there.

        `array` is contiguous and has the shape and dtype of `grads`.
        """
        if array is self.grads:
            return
        array[...] = self.grads
        self.grads = array
        self._bind()

    def forward(self, x: np.ndarray, training: bool = False) -> np.ndarray:
        """Return the outputs of the last layer. Shapes: x (N, …), N ≥ 1; result (N, O).

        In training, batch normalisation uses the statistics of the batch and updates its running statistics.
        """
        self._check_input(x)
        return self._forward_through_layers(x, training)

    def loss(self, x: np.ndarray, y: np.ndarray, training: bool = False) -> float:
        """Return the mean loss over the batch; `grads` does not change.

        `correct` then holds how many of the batch's predictions are right (a classifier's).
        """
        self.check(x, y)
        out = self._forward_through_layers(x, training)
        self.correct = self._count_correct(out, y)
        return self._loss(out, y)

    def loss_and_gradient(
        self, x: np.ndarray, y: np.ndarray, finished: Callable[[int], None] | None = None
    ) -> float:
        """Return the mean loss over the batch, in training; overwrite `grads` with its gradient.

        `correct` then holds how many of the batch's predictions were right (a classifier's).

        The backward pass fills `grads` from its end to its start. After each layer, `finished(start)` tells
        that `grads[start:]` is complete, so it can be averaged while the backward pass goes on.
        """
        self.check(x, y)
        out = self._forward_through_layers(x, training=True)
        dy: np.ndarray | None = self._loss_backward(out, y)
        start = self.grads.size
        for number, layer in reversed(list(enumerate(self.layers))):
            if self.before_layer:
                self.before_layer(number, False)
            assert dy is not None  # only the first layer may return no dx
            dy = layer.backward(dy)
            start -= flat.size(layer.parameters())
            if finished:
                finished(start)
        self.correct = self._count_correct(out, y)
        return self._loss(out, y)

    def check(self, x: np.ndarray, y: np.ndarray) -> None:
        """Raise ValueError, with the layer, what was expected and what came, if the batch does not fit."""
        self._check_input(x)
        self._check_target(x, y)

    def _forward_through_layers(self, x: np.ndarray, training: bool) -> np.ndarray:
        """Return the outputs for a batch that has already been checked."""
        for number, layer in enumerate(self.layers):
            if self.before_layer:
                self.before_layer(number, True)
            x = layer.forward(x, training)
        return x

    def _check_input(self, x: np.ndarray) -> None:
        first = self.layers[0]
        first.check(x)
        if x.dtype != self.params.dtype:
            raise ValueError(
                f"layer {first.name!r}: x is {x.dtype}, expected the model's {self.params.dtype}; "
                f"convert it once: x.astype(np.{self.params.dtype})"
            )
        if not np.isfinite(x).all():
            raise ValueError(
                f"layer {first.name!r}: x of shape {x.shape} holds NaN or infinite values "
                f"({np.count_nonzero(~np.isfinite(x))}), expected none"
            )

    def _named(self, by_layer: list[dict[str, Shape]]) -> dict[str, Shape]:
        """Return the layers' shapes with full names, from those with short names."""
        alone = len(self.layers) == 1
        return {
            short if alone else f"{layer.name}.{short}": shape
            for layer, shapes in zip(self.layers, by_layer, strict=True)
            for short, shape in shapes.items()
        }

    def _bind(self) -> None:
        """Give each layer its parts of the flat arrays, and a workspace; all workspaces share one scratch."""
        scratch, param, buffer = Workspace(), 0, 0
        for layer in self.layers:
            params, buffers = flat.size(layer.parameters()), flat.size(layer.buffers())
            in_params, in_buffers = slice(param, param + params), slice(buffer, buffer + buffers)
            layer.bind(
                self.params[in_params], self.grads[in_params], self.buffers[in_buffers], Workspace(scratch)
            )
            param, buffer = in_params.stop, in_buffers.stop

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Bind the layers of a copied or unpickled model to its own arrays."""
        vars(self).update(state)
        self._bind()

    @abstractmethod
    def _check_target(self, x: np.ndarray, y: np.ndarray) -> None: ...

    def _count_correct(self, out: np.ndarray, y: np.ndarray) -> int:
        """Return how many predictions are right. A regression has no right and wrong predictions: 0."""
        return 0

    @abstractmethod
    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the model's prediction for each sample."""


class Regression(Model):
    """A model with the mean squared error as its loss. Targets: (N, O), in the model's dtype."""

    _loss = staticmethod(ops.mean_squared_error)
    _loss_backward = staticmethod(ops.mean_squared_error_backward)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the predicted values. Shapes: x (N, …); result (N, O)."""
        return self.forward(x)

    def _check_target(self, x: np.ndarray, y: np.ndarray) -> None:
        # NumPy would silently broadcast a target of shape (N,) against outputs (N, 1) to (N, N).
        if y.shape != (len(x), self.outputs) or y.dtype != self.params.dtype:
            raise ValueError(
                f"layer {self.layers[-1].name!r}: the target has shape {y.shape} and dtype {y.dtype}, "
                f"expected {(len(x), self.outputs)} and {self.params.dtype}"
            )


class Classifier(Model):
    """A model with softmax and cross-entropy as its loss. Targets: labels (N,), integers in 0 … O-1."""

    _loss = staticmethod(ops.softmax_cross_entropy)
    _loss_backward = staticmethod(ops.softmax_cross_entropy_backward)

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

    def _count_correct(self, out: np.ndarray, y: np.ndarray) -> int:
        return int(np.count_nonzero(out.argmax(axis=1) == y))
