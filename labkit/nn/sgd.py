"""Optimisers on the flat array: stochastic gradient descent and AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from labkit.nn.ops.workspace import cache_blocks


def sgd_step(params: np.ndarray, grads: np.ndarray, lr: float) -> None:
    """Take one step of plain SGD in place: params ← params - lr · grads. Shapes: both (n,), same dtype."""
    rate = params.dtype.type(lr)
    for block in cache_blocks(params):
        params[block] -= rate * grads[block]


@dataclass(eq=False)
class SGD:
    """Stochastic gradient descent with momentum μ and weight decay λ, in place.

    v ← μ v + (grads + λ params), params ← params - lr v. The decay is the gradient of λ/2 ‖params‖², applied
    to all parameters, as in PyTorch's SGD. `velocity` (n,) is v. Ranks need not exchange it: it is computed
    from averaged gradients, so ranks with equal parameters keep equal velocities.

    Its `repr` names the settings; checkpoints compare it. Raise ValueError unless 0 ≤ momentum < 1 and
    weight_decay ≥ 0.
    Source: B. T. Polyak, Some Methods of Speeding up the Convergence of Iteration Methods, 1964.
    """

    params: np.ndarray = field(repr=False)
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1 or not self.weight_decay >= 0:
            raise ValueError(f"expected 0 ≤ momentum < 1 and weight decay ≥ 0, got {self}")
        self.velocity = np.zeros(self.params.shape, self.params.dtype)

    def on(self, params: np.ndarray) -> SGD:
        """Return an optimiser with these settings for other parameters."""
        return replace(self, params=params)

    def state(self) -> dict[str, np.ndarray]:
        """Return by name what the optimiser remembers between steps: write to it to restore a checkpoint."""
        return {"velocity": self.velocity}

    def step(self, grads: np.ndarray, lr: float) -> None:
        """Take one step in place; `grads`, of the parameters' shape and dtype, is not changed.

        Raise ValueError, with both shapes and dtypes, if they differ.
        """
        _check_fit(self.params, grads)
        as_dtype = self.params.dtype.type
        momentum, decay, rate = as_dtype(self.momentum), as_dtype(self.weight_decay), as_dtype(lr)
        for block in cache_blocks(self.params):  # so each array is read from memory only once
            params, velocity = self.params[block], self.velocity[block]
            velocity *= momentum
            velocity += grads[block]
            velocity += decay * params
            params -= rate * velocity


@dataclass(eq=False)
class SteppedSGD(SGD):
    """SGD whose step is a function, such as one that a student has written.

    `function(params, velocity, grads, lr, momentum, weight_decay)` changes `params` and `velocity` in place.
    """

    function: Callable[..., object] = field(kw_only=True, repr=False)

    def step(self, grads: np.ndarray, lr: float) -> None:
        """Let the function take one step. Raise ValueError if the gradients' shape or dtype does not fit."""
        _check_fit(self.params, grads)
        self.function(self.params, self.velocity, grads, lr, self.momentum, self.weight_decay)


@dataclass(eq=False)
class AdamW:
    """Adam with decoupled weight decay, in place: the same steps as PyTorch's AdamW.

    With g the gradient and t the number of the step, from 1, each step computes
    params ← (1 - lr λ) params, mean ← β₁ mean + (1 - β₁) g, square ← β₂ square + (1 - β₂) g², and
    params ← params - lr m / (√s + ε), where m = mean / (1 - β₁ᵗ) and s = square / (1 - β₂ᵗ) correct the bias
    of averages that start at 0. The decay λ is decoupled: it shrinks the parameters and does not enter the
    averages. `mean` and `square` (n,) are twice the memory of SGD's velocity.

    Raise ValueError unless 0 ≤ β < 1 for both betas, eps > 0 and weight_decay ≥ 0.
    Source: I. Loshchilov, F. Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
    """

    params: np.ndarray = field(repr=False)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas) or not self.eps > 0 or not self.weight_decay >= 0:
            raise ValueError(
                f"expected 0 ≤ beta < 1 for both betas, eps > 0 and weight decay ≥ 0, got {self}"
            )
        n, dtype = self.params.shape, self.params.dtype
        self.mean, self.square = np.zeros(n, dtype), np.zeros(n, dtype)
        self.steps = np.zeros((), np.int64)

    def on(self, params: np.ndarray) -> AdamW:
        """Return an optimiser with these settings for other parameters."""
        return replace(self, params=params)

    def state(self) -> dict[str, np.ndarray]:
        """Return by name what the optimiser remembers between steps: write to it to restore a checkpoint."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}

    def step(self, grads: np.ndarray, lr: float) -> None:
        """Take one step in place; `grads`, of the parameters' shape and dtype, is not changed.

        Raise ValueError, with both shapes and dtypes, if they differ.
        """
        _check_fit(self.params, grads)
        self.steps += 1
        (beta1, beta2), t, as_dtype = self.betas, int(self.steps), self.params.dtype.type
        keep, rate = as_dtype(1 - lr * self.weight_decay), as_dtype(lr / (1 - beta1**t))
        root, eps = as_dtype((1 - beta2**t) ** 0.5), as_dtype(self.eps)
        new1, new2 = as_dtype(1 - beta1), as_dtype(1 - beta2)
        for block in cache_blocks(self.params):  # so each array is read from memory only once
            params, mean, square = self.params[block], self.mean[block], self.square[block]
            params *= keep
            mean += new1 * (grads[block] - mean)
            square *= as_dtype(beta2)
            square += new2 * grads[block] * grads[block]
            params -= rate * mean / (np.sqrt(square) / root + eps)


def _check_fit(params: np.ndarray, grads: np.ndarray) -> None:
    if grads.shape != params.shape or grads.dtype != params.dtype:
        raise ValueError(
            f"expected gradients of the parameters' shape {params.shape} and dtype {params.dtype}, "
            f"got {grads.shape} and {grads.dtype}"
        )
