"""The dense layer: a matrix product and a bias."""

from __future__ import annotations

import numpy as np


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return y = x w + b.

    Shapes: x (N, I), w (I, O), b (O,); result (N, O).
    """
    return x @ w + b


def linear_backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients (dx, dw, db) of `linear`: dx = dy wᵀ, dw = xᵀ dy, db = Σₙ dy.

    Shapes: dy (N, O), x (N, I), w (I, O); result (N, I), (I, O), (O,).
    Source: the chain rule, written for matrices (Goodfellow, Bengio, Courville: Deep Learning, 2016, §
    6.5.6).
    """
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)


def flatten(x: np.ndarray) -> np.ndarray:
    """Return each sample as one row, in C order. Shapes: x (N, …); result (N, product of the rest)."""
    return x.reshape(len(x), -1)


def flatten_backward(dy: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the gradient of `flatten`: dy in the shape of x. Shapes: dy (N, product), shape that of x."""
    return dy.reshape(shape)
