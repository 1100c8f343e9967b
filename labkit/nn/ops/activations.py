"""Activation functions, applied to each element. Shapes: any, the same for all arrays; the dtype is kept.

`out`, here and in the other operations, is an array to write the result to instead of a new one, as in NumPy.
"""

from __future__ import annotations

import numpy as np


def relu(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return max(x, 0).

    Source: V. Nair, G. E. Hinton, Rectified Linear Units Improve Restricted Boltzmann Machines, ICML 2010.
    """
    return np.maximum(x, 0, out=out)


def relu_backward(dy: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the gradient of `relu`, computed from its output y: dy where y > 0, else 0.

    At the kink, x = 0, every value in 0 … dy is a subgradient; this function returns 0, as is usual.
    """
    return np.multiply(dy, y > 0, out=out)


def tanh(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the hyperbolic tangent of x."""
    return np.tanh(x, out=out)


def tanh_backward(dy: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the gradient of `tanh`, computed from its output y: dy (1 - y²), since tanh' = 1 - tanh²."""
    slope = np.multiply(y, y, out=out)
    np.subtract(1, slope, out=slope)
    return np.multiply(slope, dy, out=slope)
