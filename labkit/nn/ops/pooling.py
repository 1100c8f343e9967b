"""Pooling: each k × k window becomes one value, its mean or its maximum.

Windows do not overlap; rows and columns that fill none, at the lower and right edge, are left out. Shapes:
x (N, C, H, W), y (N, C, H // k, W // k).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.nn.workspace import parts


def _corners(x: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """Yield k² views of x, each of the shape of y: the first entry of every window, the second and so on."""
    height, width = x.shape[2] // k * k, x.shape[3] // k * k
    for i in range(k):
        for j in range(k):
            yield x[:, :, i:height:k, j:width:k]


def pooled_shape(shape: tuple[int, ...], k: int) -> tuple[int, ...]:
    """Return the shape after pooling: (N, C, H // k, W // k)."""
    return (*shape[:2], shape[2] // k, shape[3] // k)


def avgpool(x: np.ndarray, k: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return the mean of each window. Shapes: x (N, C, H, W); result (N, C, H // k, W // k)."""
    first, *others = _corners(x, k)
    y = np.empty_like(first) if out is None else out
    y[...] = first
    for corner in others:
        y += corner
    y *= y.dtype.type(1 / k**2)
    return y


def avgpool_backward(
    dy: np.ndarray, shape: tuple[int, ...], k: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Return the gradient of `avgpool`: each entry of a window gets dy / k².

    Shapes: dy (N, C, H // k, W // k), shape = (N, C, H, W), that of x and of the result.
    """
    dx = np.empty(shape, dy.dtype) if out is None else out
    share = dy * dy.dtype.type(1 / k**2)
    for corner in _corners(dx, k):
        corner[...] = share
    _clear_edges(dx, k)
    return dx


def maxpool(x: np.ndarray, k: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return the maximum of each window. Shapes: x (N, C, H, W); result (N, C, H // k, W // k)."""
    first, *others = _corners(x, k)
    y = np.empty_like(first) if out is None else out
    y[...] = first
    for corner in others:
        np.maximum(y, corner, out=y)
    return y


def maxpool_backward(
    dy: np.ndarray, x: np.ndarray, y: np.ndarray, k: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Return the gradient of `maxpool`: all of dy goes to the largest entry of the window, 0 to the others.

    Among equals the first takes it, row by row. Shapes: dy and y (N, C, H // k, W // k), x (N, C, H, W), the
    input; result as x.
    """
    dx = np.empty_like(x) if out is None else out
    for part in parts(x, values=131072):
        left = dy[part].copy(order="K")  # what has not yet found its entry
        *corners, _ = _corners(x[part], k)
        *gradients, last = _corners(dx[part], k)
        for corner, gradient in zip(corners, gradients, strict=True):
            largest = (corner == y[part]).astype(dy.dtype)
            left -= np.multiply(left, largest, out=gradient)
        last[...] = left
    _clear_edges(dx, k)
    return dx


def _clear_edges(dx: np.ndarray, k: int) -> None:
    """Set to 0 what belongs to no window."""
    dx[:, :, dx.shape[2] // k * k :] = 0
    dx[:, :, :, dx.shape[3] // k * k :] = 0
