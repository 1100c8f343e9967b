"""Convolution with 3 × 3 kernels, stride 1 and padding 1 in 16/36 of the products: Winograd's F(2×2, 3×3).

Each 2 × 2 tile of the output depends on a 4 × 4 tile of the input. In another basis, for tiles and kernels,
convolution is an element-wise product, of 16 numbers instead of 4 · 9:

    tile of y = A (M) with M = B (tile of x) · G (kernel)   (summed over input channels)

A, B and G are small constant matrices, applied to the rows and to the columns of a tile: to a tile written as
one vector, apply their Kronecker squares. So everything is a matrix product: the change of basis is one, and
each of the 16 elements is a `linear` layer from C to O channels. The backward pass of a product with a matrix
is a product with its transpose, and nothing more is needed.

Larger tiles need fewer products but lose digits in float32. Largest errors, relative to the largest value of
y, with the best of the points tried (0, ±2/3, ±3/2, ∞):

    tile     products   64 channels   512 channels
    2 × 2    16/36      4e-7           7e-7
    4 × 2    12/36      7e-7           1.6e-6
    4 × 4     9/36      1.2e-6         2.6e-6

With 4 × 2, a step of VGG-11 took 12 % less time. The tests ask for 1e-6 with 64 channels, which 4 × 2 keeps,
but deep layers would lose a factor of two to three, so tiles are 2 × 2.

Source: A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016, § 4.1.
"""

from __future__ import annotations

import numpy as np

from labkit.nn.ops.convolution import ConvGeometry
from labkit.nn.ops.workspace import Workspace, cache_blocks

B = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
A = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
B2, G2, A2 = np.kron(B, B), np.kron(G, G), np.kron(A, A)  # (16, 16), (16, 9), (4, 16)
# Column 5 of A2 is all ones: a number added to element 5 of M is added to the whole tile, as a bias is.
BIAS = 5


def fits(geometry: ConvGeometry, image: tuple[int, ...]) -> bool:
    """Return whether the kernel is 3 × 3 and tiles cover an image of shape (C, H, W) exactly."""
    return geometry == ConvGeometry(3, stride=1, pad=1) and image[1] % 2 == 0 and image[2] % 2 == 0


def forward(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, workspace: Workspace
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (y, v, u): y as from `conv2d` with padding 1; x and w in Winograd's basis, for `backward`.

    Shapes: x (N, C, H, W), w (3, 3, C, O), b (O,), H and W even; result (N, O, H, W), v (16, T, C), u (16, C,
    O), where T = N·H/2·W/2 is the number of tiles. All are valid until the next call with the same
    workspace.
    """
    n, c, height, width = x.shape
    outputs, rows, columns = w.shape[3], height // 2, width // 2
    x_padded = workspace.scratch.array("padded x", (n, height + 2, width + 2, c), x.dtype)
    _clear_border(x_padded)
    x_padded[:, 1:-1, 1:-1] = x.transpose(0, 2, 3, 1)

    v = workspace.spread("v", (16, n, rows * columns * c), x.dtype)
    for block in cache_blocks(x):
        tiles = _tiles(x_padded[block])
        packed = workspace.scratch.spread("tiles", (16, tiles[0, 0].size), x.dtype)
        packed.reshape(tiles.shape)[...] = tiles
        np.matmul(B2.astype(x.dtype), packed, out=v[:, block].reshape(16, -1))
    v = v.reshape(16, -1, c)

    u = workspace.spread("u", (16, c, outputs), w.dtype)
    np.matmul(G2.astype(w.dtype), w.reshape(9, -1), out=u.reshape(16, -1))
    m = np.matmul(v, u, out=workspace.scratch.spread("m", (16, len(v[0]), outputs), x.dtype))
    m[BIAS] += b

    y = workspace.array("y", (n, height, width, outputs), x.dtype)
    by_image = m.reshape(16, n, -1)
    for block in cache_blocks(y):
        y_tiles = y[block].reshape(-1, rows, 2, columns, 2, outputs).transpose(2, 4, 0, 1, 3, 5)
        packed = workspace.scratch.spread("y tiles", (4, y_tiles[0, 0].size), x.dtype)
        np.matmul(A2.astype(x.dtype), by_image[:, block].reshape(16, -1), out=packed)
        y_tiles[...] = packed.reshape(y_tiles.shape)
    return y.transpose(0, 3, 1, 2), v, u


def backward(
    dy: np.ndarray, v: np.ndarray, u: np.ndarray, workspace: Workspace, *, dw: np.ndarray, db: np.ndarray
) -> np.ndarray:
    """Return dx, and write the gradients of w and b to dw and db.

    Shapes: dy (N, O, H, W), v (16, T, C) and u (16, C, O) from `forward`, dw (3, 3, C, O), db (O,); result
    (N, C, H, W), valid until the next call with a workspace that has the same scratch.
    """
    n, outputs, height, width = dy.shape
    c, rows, columns = u.shape[1], height // 2, width // 2
    dm = workspace.scratch.spread("m", (16, n, rows * columns * outputs), dy.dtype)
    dy = dy.transpose(0, 2, 3, 1)
    for block in cache_blocks(dy):
        y_tiles = dy[block].reshape(-1, rows, 2, columns, 2, outputs).transpose(2, 4, 0, 1, 3, 5)
        packed = workspace.scratch.spread("y tiles", (4, y_tiles[0, 0].size), dy.dtype)
        packed.reshape(y_tiles.shape)[...] = y_tiles
        np.matmul(A2.T.astype(dy.dtype), packed, out=dm[:, block].reshape(16, -1))
    dm = dm.reshape(16, -1, outputs)

    db[...] = dm[BIAS].sum(axis=0)
    dv = np.matmul(dm, u.transpose(0, 2, 1), out=workspace.scratch.spread("dv", v.shape, dy.dtype))
    du = np.matmul(v.transpose(0, 2, 1), dm, out=workspace.scratch.spread("du", u.shape, dy.dtype))
    np.matmul(G2.T.astype(dy.dtype), du.reshape(16, -1), out=dw.reshape(9, -1))

    dx = workspace.scratch.array("dx", (n, height, width, c), dy.dtype)
    by_image = dv.reshape(16, n, -1)
    for block in cache_blocks(dx):
        inner = dx[block].reshape(-1, rows, 2, columns, 2, c).transpose(2, 4, 0, 1, 3, 5)
        packed = workspace.scratch.spread("tiles", (16, inner[0, 0].size), dy.dtype)
        np.matmul(B2.T.astype(dy.dtype), by_image[:, block].reshape(16, -1), out=packed)
        dtiles = packed.reshape(4, 4, *inner.shape[2:])
        # A tile's outer columns, then its outer rows, lie on the inner ones of its neighbours, or in the
        # padding.
        dtiles[:, 1, :, :, 1:] += dtiles[:, 3, :, :, :-1]
        dtiles[:, 2, :, :, :-1] += dtiles[:, 0, :, :, 1:]
        dtiles[1, 1:3, :, 1:] += dtiles[3, 1:3, :, :-1]
        dtiles[2, 1:3, :, :-1] += dtiles[0, 1:3, :, 1:]
        inner[...] = dtiles[1:3, 1:3]
    return dx.transpose(0, 3, 1, 2)


def _tiles(x_padded: np.ndarray) -> np.ndarray:
    """Return the overlapping 4 × 4 tiles of the padded x, at distance 2, as a view.

    Shapes: x_padded (N, H + 2, W + 2, C); result (4, 4, N, H/2, W/2, C).
    """
    tiles = np.lib.stride_tricks.sliding_window_view(x_padded, (4, 4), axis=(1, 2))
    return tiles[:, ::2, ::2].transpose(4, 5, 0, 1, 2, 3)


def _clear_border(x_padded: np.ndarray) -> None:
    x_padded[:, [0, -1]] = 0
    x_padded[:, :, [0, -1]] = 0
