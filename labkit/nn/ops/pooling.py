"""Pooling: each k × k window becomes one value, its mean or its maximum.

Windows do not overlap. Rows and columns at the lower and right edge that do not fill a window are left out.
Shapes: x (N, C, H, W), y (N, C, H // k, W // k).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.nn.ops.workspace import matching_blocks, memory_order


def _window_elements(x: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """Yield k² views of x in the shape of y: the first element of every window, the second, and so on."""
    height, width = x.shape[2] // k * k, x.shape[3] // k * k
    for i in range(k):
        for j in range(k):
            yield x[:, :, i:height:k, j:width:k]


def pooled_shape(shape: tuple[int, ...], k: int) -> tuple[int, ...]:
    """Return the shape after pooling: (N, C, H // k, W // k)."""
    return (*shape[:2], shape[2] // k, shape[3] // k)


def avgpool(x: np.ndarray, k: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return the mean of each window. Shapes: x (N, C, H, W); result (N, C, H // k, W // k)."""
    first, *others = _window_elements(x, k)
    y = np.empty_like(first) if out is None else out
    y[...] = first
    for element in others:
        y += element
    y *= y.dtype.type(1 / k**2)
    return y


def avgpool_backward(
    dy: np.ndarray, shape: tuple[int, ...], k: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Return the gradient of `avgpool`: each element of a window gets dy / k².

    Shapes: dy (N, C, H // k, W // k); `shape` is (N, C, H, W), that of x and of the result.
    """
    dx = np.empty(shape, dy.dtype) if out is None else out
    spread = dy * dy.dtype.type(1 / k**2)
    for element in _window_elements(dx, k):
        element[...] = spread
    _clear_edges(dx, k)
    return dx


def maxpool(x: np.ndarray, k: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return the maximum of each window. Shapes: x (N, C, H, W); result (N, C, H // k, W // k)."""
    first, *others = _window_elements(x, k)
    y = np.empty_like(first) if out is None else out
    y[...] = first
    for element in others:
        np.maximum(y, element, out=y)
    return y


def maxpool_backward(
    dy: np.ndarray, x: np.ndarray, y: np.ndarray, k: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Return the gradient of `maxpool`: the largest element of each window gets dy, the others get 0.

    Of several equal maxima, the first in row-major order gets all of dy, as in PyTorch.
    Shapes: dy and y (N, C, H // k, W // k); x, the input, and the result (N, C, H, W).
    """
    dx = np.empty_like(x) if out is None else out
    arrays = (y, dy, *_window_elements(x, k), *_window_elements(dx, k))
    for largest, upstream, *views in matching_blocks(arrays, memory_order(x)):
        left = upstream.copy()  # becomes 0 as soon as the maximum of its window is found
        *gradients, last = views[k**2 :]
        for element, gradient in zip(views, gradients, strict=False):
            left -= np.multiply(left, element == largest, out=gradient)
        last[...] = left
    _clear_edges(dx, k)
    return dx


def _clear_edges(dx: np.ndarray, k: int) -> None:
    """Set the rows and columns of dx that belong to no window to 0."""
    dx[:, :, dx.shape[2] // k * k :] = 0
    dx[:, :, :, dx.shape[3] // k * k :] = 0
