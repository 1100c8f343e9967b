"""Convolution as one product of matrices (im2col): for any kernel, and best where channels are few.

What the kernel sees at one output becomes one column. A row of ones below them makes the bias a weight like
the others: with w and b stacked to one matrix (K·K·C + 1, O), as they lie in a layer's flat parameters,
y = wbᵀ columns, and the product of columns and dy is the gradient of both.
Source: K. Chellapilla, S. Puri, P. Simard, High Performance Convolutional Neural Networks, 2006.
"""

from __future__ import annotations

import numpy as np

from labkit.nn.ops.convolution import Window
from labkit.nn.workspace import Workspace

# With many outputs, channels are best innermost in memory; with few, runs along the width are longer.
MANY = 32


def forward(
    x: np.ndarray, wb: np.ndarray, window: Window, workspace: Workspace
) -> tuple[np.ndarray, np.ndarray]:
    """Return (y, columns), y as `conv2d`.

    Shapes: x (N, C, H, W), wb (K·K·C + 1, O); result (N, O, H', W') and
    (K·K·C + 1, N·H'·W'). Both are valid until the next call with the same work.
    """
    n, c = x.shape[:2]
    height, width = window.output_size(x.shape[1:])
    x = _padded(x, window.pad, workspace)
    columns = workspace.array("columns", (len(wb), n * height * width), x.dtype)
    columns[-1] = 1
    seen = columns[:-1].reshape(*window.kernel, c, n, height, width)
    for k, l in window.places():
        seen[k, l] = window.seen(x, k, l).transpose(1, 0, 2, 3)
    outputs = wb.shape[1]
    if outputs < MANY:
        y = np.matmul(wb.T, columns, out=workspace.array("y", (outputs, n * height * width), x.dtype))
        return y.reshape(outputs, n, height, width).transpose(1, 0, 2, 3), columns
    y = np.matmul(columns.T, wb, out=workspace.array("y", (n * height * width, outputs), x.dtype))
    return y.reshape(n, height, width, outputs).transpose(0, 3, 1, 2), columns


def backward_weights(dy: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Leave the gradient of w and b, columns · dy, in `out`.

    Shapes: dy (N, O, H', W'), columns (K·K·C + 1, N·H'·W'), out (K·K·C + 1, O).
    """
    np.matmul(columns, _matrix(dy), out=out)


def backward_input(
    dy: np.ndarray,
    wb: np.ndarray,
    shape: tuple[int, ...],
    window: Window,
    workspace: Workspace,
) -> np.ndarray:
    """Return dx: the gradient of the columns, w dyᵀ, each added where it was taken from.

    Shapes: dy (N, O, H', W'), wb (K·K·C + 1, O), shape = (N, C, H, W), that of x and of the result.
    """
    n, c, h, w = shape
    pad, (height, width) = window.pad, dy.shape[2:]
    dcolumns = workspace.scratch.array("dcolumns", (len(wb) - 1, n * height * width), dy.dtype)
    np.matmul(wb[:-1], _matrix(dy).T, out=dcolumns)
    parts = dcolumns.reshape(*window.kernel, c, n, height, width)
    dx = workspace.scratch.array("dx", (c, n, h + 2 * pad, w + 2 * pad), dy.dtype)
    dx[...] = 0
    for k, l in window.places():
        target = window.seen(dx, k, l)
        target += parts[k, l]
    return dx[:, :, pad : pad + h, pad : pad + w].transpose(1, 0, 2, 3)


def _matrix(dy: np.ndarray) -> np.ndarray:
    """Return dy as a matrix (N·H'·W', O): a view, transposed if the channels are outermost in memory."""
    if dy.shape[1] < MANY:
        return dy.transpose(1, 0, 2, 3).reshape(dy.shape[1], -1).T
    return dy.transpose(0, 2, 3, 1).reshape(-1, dy.shape[1])


def _padded(x: np.ndarray, pad: int, workspace: Workspace) -> np.ndarray:
    if not pad:
        return x
    n, c, h, w = x.shape
    large = workspace.scratch.like("padded", x, (n, c, h + 2 * pad, w + 2 * pad))
    large[...] = 0
    large[:, :, pad : pad + h, pad : pad + w] = x
    return large
