"""Convolution as one matrix product (im2col): for any kernel, and fastest where there are few channels.

The inputs of each output position become one column of a matrix. A last row of ones makes the bias a weight
like the others: with w and b stacked into one matrix wb (K·K·C + 1, O), as they are in a layer's flat
parameters, y = wbᵀ columns, and columns · dy is the gradient of both.
Source: K. Chellapilla, S. Puri, P. Simard, High Performance Convolutional Neural Networks, 2006.
"""

from __future__ import annotations

import numpy as np

from labkit.nn.ops.convolution import ConvGeometry
from labkit.nn.ops.workspace import Workspace

# From this many output channels on, y has its channels innermost in memory; with fewer, its width, since
# loops along the width are then the longer ones.
CHANNELS_LAST_FROM = 32


def forward(
    x: np.ndarray, wb: np.ndarray, geometry: ConvGeometry, workspace: Workspace
) -> tuple[np.ndarray, np.ndarray]:
    """Return (y, columns), with y as from `conv2d`.

    Shapes: x (N, C, H, W), wb (K·K·C + 1, O); result (N, O, H', W') and (K·K·C + 1, N·H'·W'). Both are valid
    until the next call with the same workspace.
    """
    n, c = x.shape[:2]
    height, width = geometry.output_size(x.shape[1:])
    x = _padded(x, geometry.pad, workspace)
    columns = workspace.array("columns", (len(wb), n * height * width), x.dtype)
    columns[-1] = 1
    patches = columns[:-1].reshape(*geometry.kernel_shape, c, n, height, width)
    for k, l in geometry.offsets():
        patches[k, l] = geometry.inputs_at(x, k, l).transpose(1, 0, 2, 3)
    outputs = wb.shape[1]
    if outputs < CHANNELS_LAST_FROM:
        y = np.matmul(wb.T, columns, out=workspace.array("y", (outputs, n * height * width), x.dtype))
        return y.reshape(outputs, n, height, width).transpose(1, 0, 2, 3), columns
    y = np.matmul(columns.T, wb, out=workspace.array("y", (n * height * width, outputs), x.dtype))
    return y.reshape(n, height, width, outputs).transpose(0, 3, 1, 2), columns


def backward_weights(dy: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Write the gradient of w and b, columns · dy, to `out`.

    Shapes: dy (N, O, H', W'), columns (K·K·C + 1, N·H'·W'), out (K·K·C + 1, O).
    """
    np.matmul(columns, _matrix(dy), out=out)


def backward_input(
    dy: np.ndarray,
    wb: np.ndarray,
    shape: tuple[int, ...],
    geometry: ConvGeometry,
    workspace: Workspace,
) -> np.ndarray:
    """Return dx: each element of the columns' gradient, w dyᵀ, is added at the position it was copied from.

    Shapes: dy (N, O, H', W'), wb (K·K·C + 1, O); shape = (N, C, H, W) is that of x and of the result.
    """
    n, c, h, w = shape
    pad, (height, width) = geometry.pad, dy.shape[2:]
    dcolumns = workspace.scratch.array("dcolumns", (len(wb) - 1, n * height * width), dy.dtype)
    np.matmul(wb[:-1], _matrix(dy).T, out=dcolumns)
    dpatches = dcolumns.reshape(*geometry.kernel_shape, c, n, height, width)
    dx = workspace.scratch.array("dx", (c, n, h + 2 * pad, w + 2 * pad), dy.dtype)
    dx[...] = 0
    for k, l in geometry.offsets():
        target = geometry.inputs_at(dx, k, l)
        target += dpatches[k, l]
    return dx[:, :, pad : pad + h, pad : pad + w].transpose(1, 0, 2, 3)


def _matrix(dy: np.ndarray) -> np.ndarray:
    """Return dy as a matrix (N·H'·W', O): a view, transposed where the channels are outermost in memory."""
    if dy.shape[1] < CHANNELS_LAST_FROM:
        return dy.transpose(1, 0, 2, 3).reshape(dy.shape[1], -1).T
    return dy.transpose(0, 2, 3, 1).reshape(-1, dy.shape[1])


def _padded(x: np.ndarray, pad: int, workspace: Workspace) -> np.ndarray:
    if not pad:
        return x
    n, c, h, w = x.shape
    padded = workspace.scratch.like("padded", x, (n, c, h + 2 * pad, w + 2 * pad))
    padded[...] = 0
    padded[:, :, pad : pad + h, pad : pad + w] = x
    return padded
