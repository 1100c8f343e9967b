"""Convolution as matrix products (im2col): for any kernel, and fastest where there are few channels.

im2col copies the inputs of each output position into a column of a matrix; then y = wᵀ columns. The inputs
of a position overlap with those of its neighbours, so it copies each value up to K² times. Here it is copied
only K times, shifted along the width by 0 … K-1. Since image rows are outermost in memory, K consecutive ones
are the columns of one row of the output: a view, for one matrix product. Samples are innermost in memory, so
loops are long even where images are small.
Source: M. Cho, D. Brand, MEC: Memory-efficient Convolution for Deep Neural Network, ICML 2017; im2col itself:
K. Chellapilla, S. Puri, P. Simard, High Performance Convolutional Neural Networks, 2006.

w and b are stacked into one matrix wb (K·K·C + 1, O), as they are in a layer's flat parameters.
"""

from __future__ import annotations

import numpy as np

from labkit.nn.ops.convolution import ConvGeometry
from labkit.nn.ops.workspace import Workspace

# From this many output channels on, y has its channels innermost in memory, as Winograd convolution has, and
# with fewer its samples: loops along the innermost axis are then the longer ones.
CHANNELS_LAST_FROM = 32


def forward(
    x: np.ndarray, wb: np.ndarray, geometry: ConvGeometry, workspace: Workspace
) -> tuple[np.ndarray, np.ndarray]:
    """Return (y, columns), with y as from `conv2d` and the columns of each row of y.

    Shapes: x (N, C, H, W), wb (K·K·C + 1, O); result (N, O, H', W') and (H', K·K·C, W'·N). Both are valid
    until the next call with the same workspace.
    """
    n, c = x.shape[:2]
    height, width = geometry.output_size(x.shape[1:])
    x = _padded(x, geometry.pad, workspace)
    shifted = workspace.array("shifted", (len(x), geometry.k, c, width, n), x.dtype)
    for l in range(geometry.k):
        shifted[:, l] = x[:, :, l : l + geometry.stride * width : geometry.stride]
    columns = np.lib.stride_tricks.as_strided(
        shifted,
        (height, len(wb) - 1, width * n),
        (geometry.stride * shifted.strides[0], shifted.strides[2], x.itemsize),
        writeable=False,
    )
    w, b = wb[:-1], wb[-1]
    if len(b) < CHANNELS_LAST_FROM:
        y = np.matmul(w.T, columns, out=workspace.array("y", (height, len(b), width * n), x.dtype))
        y += b[:, None]
        return y.reshape(height, len(b), width, n).transpose(3, 1, 0, 2), columns
    y = workspace.array("y", (height, width * n, len(b)), x.dtype)
    np.matmul(columns.transpose(0, 2, 1), w, out=y)
    y += b
    return y.reshape(height, width, n, len(b)).transpose(2, 3, 0, 1), columns


def backward_weights(dy: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Write the gradient of w, Σ columns · dy over the rows of y, and that of b, Σ dy, to `out`.

    Shapes: dy (N, O, H', W'), columns (H', K·K·C, W'·N), out (K·K·C + 1, O).
    """
    dy = _matrices(dy)
    np.matmul(columns, dy).sum(axis=0, out=out[:-1])
    out[-1] = (np.ones(dy.shape[1], dy.dtype) @ dy).sum(axis=0)


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
    k, stride, pad, width = geometry.k, geometry.stride, geometry.pad, dy.shape[3]
    dcolumns = workspace.scratch.array("dcolumns", (len(wb) - 1, width * n), dy.dtype)
    dshifted = workspace.scratch.array("dshifted", (h + 2 * pad, k, c, width, n), dy.dtype)
    dshifted[...] = 0
    for i, dy_row in enumerate(_matrices(dy)):
        np.matmul(wb[:-1], dy_row.T, out=dcolumns)
        dshifted[stride * i : stride * i + k] += dcolumns.reshape(k, k, c, width, n)
    dx = workspace.scratch.array("dx", (h + 2 * pad, c, w + 2 * pad, n), dy.dtype)
    dx[...] = 0
    for l in range(k):
        dx[:, :, l : l + stride * width : stride] += dshifted[:, l]
    return dx[pad : pad + h, :, pad : pad + w].transpose(3, 1, 0, 2)


def _matrices(dy: np.ndarray) -> np.ndarray:
    """Return dy as one matrix for each row, (H', W'·N, O): a view if dy has the memory layout of y."""
    n, outputs, height, width = dy.shape
    if outputs < CHANNELS_LAST_FROM:
        return dy.transpose(2, 1, 3, 0).reshape(height, outputs, width * n).transpose(0, 2, 1)
    return dy.transpose(2, 3, 0, 1).reshape(height, width * n, outputs)


def _padded(x: np.ndarray, pad: int, workspace: Workspace) -> np.ndarray:
    """Return x with `pad` zeros on every side, in the order of memory. Shapes: result (H, C, W, N)."""
    n, c, h, w = x.shape
    x = x.transpose(2, 1, 3, 0)
    if not pad and x.flags.c_contiguous:
        return x
    padded = workspace.scratch.array("padded", (h + 2 * pad, c, w + 2 * pad, n), x.dtype)
    if pad:
        padded[...] = 0
    padded[pad : pad + h, :, pad : pad + w] = x
    return padded


def columns_of(x: np.ndarray, k: int, stride: int, pad: int) -> np.ndarray:
    """Return one column for each position of the kernel; the samples are the last axis in memory.

    An assignment then copies runs of W'·N numbers (stride 1). If the channels are last, the runs have C
    numbers. Notebook 02 compares the two orders. Shapes: x (N, C, H, W); result (k·k·C, H'·W'·N).
    """
    x = np.pad(x.transpose(1, 2, 3, 0), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    c, h, w, n = x.shape
    height, width = (h - k) // stride + 1, (w - k) // stride + 1
    columns = np.empty((k, k, c, height, width, n), x.dtype)
    for i in range(k):
        for j in range(k):
            columns[i, j] = x[:, i : i + stride * height : stride, j : j + stride * width : stride]
    return columns.reshape(k * k * c, height * width * n)
