"""Stochastic gradient descent on the flat array."""

from __future__ import annotations

import numpy as np

from labkit.nn.ops.workspace import cache_blocks


def sgd_step(params: np.ndarray, grads: np.ndarray, lr: float) -> None:
    """Take one step of plain SGD in place: params ← params - lr · grads. Shapes: both (n,), same dtype."""
    rate = params.dtype.type(lr)
    for block in cache_blocks(params):
        params[block] -= rate * grads[block]


class SGD:
    """Stochastic gradient descent with momentum μ and weight decay λ, in place.

    v ← μ v + (grads + λ params), params ← params - lr v. The decay is the gradient of λ/2 ‖params‖², applied
    to all parameters, as in PyTorch's SGD. `velocity` (n,) is v. Ranks need not exchange it: it is computed
    from averaged gradients, so ranks with equal parameters keep equal velocities.

    Raise ValueError unless 0 ≤ momentum < 1 and weight_decay ≥ 0.
    Source: B. T. Polyak, Some Methods of Speeding up the Convergence of Iteration Methods, 1964.
    """

    def __init__(self, params: np.ndarray, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        if not 0 <= momentum < 1 or not weight_decay >= 0:
            raise ValueError(
                f"expected 0 ≤ momentum < 1 and weight decay ≥ 0, got momentum {momentum} and weight decay "
                f"{weight_decay}"
            )
        self.params, self.momentum, self.weight_decay = params, momentum, weight_decay
        self.velocity = np.zeros_like(params)

    def __repr__(self) -> str:
        """Return the optimiser's name and settings; checkpoints compare them."""
        return f"SGD(momentum={self.momentum:g}, weight_decay={self.weight_decay:g})"

    def state(self) -> dict[str, np.ndarray]:
        """Return by name what the optimiser remembers between steps: write to it to restore a checkpoint."""
        return {"velocity": self.velocity}

    def step(self, grads: np.ndarray, lr: float) -> None:
        """Take one step in place; `grads`, of the parameters' shape and dtype, is not changed.

        Raise ValueError, with both shapes and dtypes, if they differ.
        """
        if grads.shape != self.params.shape or grads.dtype != self.params.dtype:
            raise ValueError(
                f"expected gradients of the parameters' shape {self.params.shape} and dtype "
                f"{self.params.dtype}, got {grads.shape} and {grads.dtype}"
            )
        as_dtype = self.params.dtype.type
        momentum, decay, rate = as_dtype(self.momentum), as_dtype(self.weight_decay), as_dtype(lr)
        for block in cache_blocks(self.params):  # so each array is read from memory only once
            params, velocity = self.params[block], self.velocity[block]
            velocity *= momentum
            velocity += grads[block]
            velocity += decay * params
            params -= rate * velocity
