"""Convolution of images that are smaller than the 3 × 3 kernel: one matrix product for each kernel element.

This is the clear form, `conv2d`, without the products with padding: kernel element (k, l) is multiplied only
with inputs inside the image. For a 2 × 2 image these are 16 products, as in Winograd's method, instead of the
36 of im2col. And w is used as it is: deep in a network it is far larger than these images, and changing its
basis takes almost as long as the products.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.nn.ops.convolution import ConvGeometry
from labkit.nn.ops.workspace import Workspace

Positions = tuple[slice, slice]  # rows and columns of an image


def fits(geometry: ConvGeometry, image: tuple[int, ...]) -> bool:
    """Return whether the kernel is 3 × 3 and an image of shape (C, H, W) is at most 2 × 2."""
    return geometry == ConvGeometry(3, stride=1, pad=1) and max(image[1:]) <= 2


def overlaps(height: int, width: int) -> Iterator[tuple[tuple[int, int], Positions, Positions]]:
    """Yield (k, l), the inputs inside the image that this kernel element multiplies, and their outputs."""
    for k, l in np.ndindex(3, 3):
        input_rows, output_rows = _overlap(k - 1, height)
        input_columns, output_columns = _overlap(l - 1, width)
        yield (k, l), (input_rows, input_columns), (output_rows, output_columns)


def forward(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, workspace: Workspace
) -> tuple[np.ndarray, np.ndarray]:
    """Return y as from `conv2d` with padding 1, and x with its positions outermost in memory, for `backward`.

    Shapes: x (N, C, H, W), w (3, 3, C, O), b (O,); result (N, O, H, W) and (H, W, N, C). Both are valid until
    the next call with the same workspace.
    """
    n, c, height, width = x.shape
    by_position = workspace.array("x", (height, width, n, c), x.dtype)
    by_position[...] = x.transpose(2, 3, 0, 1)
    y = workspace.array("y", (height, width, n, len(b)), x.dtype)
    y[...] = b
    for element, inputs, outputs in overlaps(height, width):
        y[outputs] += np.tensordot(by_position[inputs], w[element], axes=(3, 0))
    return y.transpose(2, 3, 0, 1), by_position


def backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray, workspace: Workspace, *, dw: np.ndarray, db: np.ndarray
) -> np.ndarray:
    """Return dx, and write the gradients of w and b to dw and db.

    Shapes: dy (N, O, H, W), x (H, W, N, C) from `forward`, w and dw (3, 3, C, O), db (O,); result (N, C, H,
    W), valid until the next call with a workspace that has the same scratch.
    """
    height, width, n, c = x.shape
    # A copy: dy may be in the memory of the last call's dx.
    dy_by_position = workspace.scratch.array("dy", (height, width, n, len(db)), dy.dtype)
    dy_by_position[...] = dy.transpose(2, 3, 0, 1)
    dx = workspace.scratch.array("dx", x.shape, dy.dtype)
    dx[...] = 0
    for element, inputs, outputs in overlaps(height, width):
        x_matrix, dy_matrix = x[inputs].reshape(-1, c), dy_by_position[outputs].reshape(-1, len(db))
        np.matmul(x_matrix.T, dy_matrix, out=dw[element])
        dx[inputs] += np.tensordot(dy_by_position[outputs], w[element], axes=(3, 1))
    db[...] = dy_by_position.sum(axis=(0, 1, 2))
    return dx.transpose(2, 3, 0, 1)


def _overlap(shift: int, size: int) -> tuple[slice, slice]:
    """Return the inputs i + shift that lie in 0 … size - 1, and their outputs i."""
    first, end = max(0, -shift), min(size, size - shift)
    return slice(first + shift, end + shift), slice(first, end)
