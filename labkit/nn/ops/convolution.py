"""Convolution, as clear as it gets: one product of matrices for each place in the kernel.

`columns` and `winograd` compute the same faster; a test holds them equal to this.
"""

from __future__ import annotations

import numpy as np


def conv2d(x: np.ndarray, w: np.ndarray, b: np.ndarray, stride: int = 1, pad: int = 0) -> np.ndarray:
    """Return y[n, o, i, j] = b[o] + Σ over k, l, c of x[n, c, s·i + k - p, s·j + l - p] w[k, l, c, o].

    s is the stride; x is taken as 0 outside, where the padding p reaches. Shapes: x (N, C, H, W), w (K, L, C,
    O), inputs before outputs as in `linear`, b (O,); result (N, O, (H + 2p - K) // s + 1, …).
    It is a cross-correlation: the kernel is not flipped, as in all of deep learning (Goodfellow, Bengio,
    Courville: Deep Learning, 2016, § 9.1).
    """
    height, width = output_size(x.shape, w.shape, stride, pad)
    x = padded(x, pad)
    y = np.zeros((len(x), height, width, w.shape[3]), x.dtype)
    for k in range(w.shape[0]):
        for l in range(w.shape[1]):
            y += np.tensordot(_seen(x, k, l, height, width, stride), w[k, l], axes=(1, 0))
    return (y + b).transpose(0, 3, 1, 2)


def conv2d_backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray, stride: int = 1, pad: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients (dx, dw, db) of `conv2d`.

    Each place (k, l) of the kernel is a `linear` layer on the entries that it sees, so dw[k, l] is their
    product with dy, summed over samples and positions, and dx adds up dy w[k, l]ᵀ where they lie.
    Shapes: dy as the result of `conv2d`, x (N, C, H, W), w (K, L, C, O); result as x, w, b.
    """
    height, width = dy.shape[2:]
    large = padded(x, pad)
    dlarge, dw = np.zeros_like(large), np.empty_like(w)
    for k in range(w.shape[0]):
        for l in range(w.shape[1]):
            seen = _seen(large, k, l, height, width, stride)
            dw[k, l] = np.tensordot(seen, dy, axes=((0, 2, 3), (0, 2, 3)))
            back = np.tensordot(dy, w[k, l], axes=(1, 1)).transpose(0, 3, 1, 2)
            _seen(dlarge, k, l, height, width, stride)[...] += back
    dx = dlarge[:, :, pad : pad + x.shape[2], pad : pad + x.shape[3]]
    return dx, dw, dy.sum(axis=(0, 2, 3))


def output_size(x: tuple[int, ...], w: tuple[int, ...], stride: int, pad: int) -> tuple[int, int]:
    """Return the height and width of the result: (size + 2 pad - kernel) // stride + 1.

    Shapes: x = (N, C, H, W), w = (K, L, C, O). A ValueError says so if the kernel is larger than the image.
    """
    height, width = ((x[2 + a] + 2 * pad - w[a]) // stride + 1 for a in (0, 1))
    if height < 1 or width < 1:
        raise ValueError(f"x of shape {x} with padding {pad} is smaller than the kernel of shape {w}")
    return height, width


def padded(x: np.ndarray, pad: int) -> np.ndarray:
    """Return x with `pad` rows and columns of zeros all round. Shapes: (N, C, H, W); (N, C, H + 2 pad, …)."""
    return np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) if pad else x


def _seen(x: np.ndarray, k: int, l: int, height: int, width: int, stride: int) -> np.ndarray:
    """Return the view of what the kernel's place (k, l) sees at each output. Shape: (N, C, height, width)."""
    return x[:, :, k : k + stride * height : stride, l : l + stride * width : stride]
