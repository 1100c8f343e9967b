"""Stochastic gradient descent on the flat array."""

from __future__ import annotations

import numpy as np

from labkit.nn.workspace import parts


def sgd_step(params: np.ndarray, grads: np.ndarray, lr: float) -> None:
    """Take one plain step in place: params ← params - lr · grads. Shapes: both (n,), one dtype."""
    rate = params.dtype.type(lr)
    for part in parts(params):
        params[part] -= rate * grads[part]


class SGD:
    """Gradient descent with momentum μ and weight decay λ, in place.

    v ← μ v + (grads + λ params), params ← params - lr v. The decay is that of λ/2 ‖params‖² in the loss, on
    all parameters alike, as in PyTorch's SGD. `velocity` (n,) is v: ranks with equal parameters keep it equal
    without sending it, for it is made of averaged gradients.
    Source: B. T. Polyak, Some Methods of Speeding up the Convergence of Iteration Methods, 1964.
    """

    def __init__(self, params: np.ndarray, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        if not 0 <= momentum < 1 or not weight_decay >= 0:
            raise ValueError(
                f"momentum {momentum}, weight decay {weight_decay}: expected 0 ≤ momentum < 1 and decay ≥ 0"
            )
        self.params, self.momentum, self.weight_decay = params, momentum, weight_decay
        self.velocity = np.zeros_like(params)

    def step(self, grads: np.ndarray, lr: float) -> None:
        """Take one step in place. Shapes: grads as the parameters; it is left alone.

        A ValueError names both shapes and dtypes if they differ.
        """
        if grads.shape != self.params.shape or grads.dtype != self.params.dtype:
            raise ValueError(
                f"grads of shape {grads.shape} and {grads.dtype}, expected {self.params.shape} and "
                f"{self.params.dtype} as the parameters"
            )
        as_dtype = self.params.dtype.type
        momentum, decay, rate = as_dtype(self.momentum), as_dtype(self.weight_decay), as_dtype(lr)
        for part in parts(self.params):  # three arrays and a temporary one, each passed through once
            params, velocity = self.params[part], self.velocity[part]
            velocity *= momentum
            velocity += grads[part]
            velocity += decay * params
            params -= rate * velocity
