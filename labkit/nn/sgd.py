"""Stochastic gradient descent on the flat array."""

from __future__ import annotations

import numpy as np


def sgd_step(params: np.ndarray, grads: np.ndarray, lr: float) -> None:
    """Take one plain step in place: params ← params - lr · grads. Shapes: both (n,), one dtype."""
    params -= params.dtype.type(lr) * grads
