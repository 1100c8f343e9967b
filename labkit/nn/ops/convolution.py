"""Convolution, as clear as it gets: one product of matrices for each place in the kernel.

`columns` and `winograd` compute the same faster; a test holds them equal to this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """What an output sees: k × k entries, the next one those `stride` further; `pad` rows of 0 all round."""

    k: int
    stride: int = 1
    pad: int = 0

    @property
    def kernel(self) -> tuple[int, int]:
        """The kernel's height and width."""
        return self.k, self.k

    def output_size(self, image: tuple[int, ...]) -> tuple[int, int]:
        """Return the height and width of the result: (size + 2 pad - k) // stride + 1.

        `image` is (C, H, W). A ValueError says so if the kernel is larger than the padded image.
        """
        height, width = ((size + 2 * self.pad - self.k) // self.stride + 1 for size in image[1:])
        if height < 1 or width < 1:
            raise ValueError(
                f"x of shape (batch, {', '.join(map(str, image))}) padded by {self.pad} is smaller than the"
                f" kernel of {self.k} × {self.k}"
            )
        return height, width

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the places in the kernel, row by row."""
        for k in range(self.k):
            for l in range(self.k):
                yield k, l

    def seen(self, x: np.ndarray, k: int, l: int) -> np.ndarray:
        """Return the view of what place (k, l) sees at each output. Shapes: x (…, H, W), already padded."""
        height = (x.shape[-2] - self.k) // self.stride + 1
        width = (x.shape[-1] - self.k) // self.stride + 1
        return x[..., k : k + self.stride * height : self.stride, l : l + self.stride * width : self.stride]


def conv2d(x: np.ndarray, w: np.ndarray, b: np.ndarray, stride: int = 1, pad: int = 0) -> np.ndarray:
    """Return y[n, o, i, j] = b[o] + Σ over k, l, c of x[n, c, s·i + k - p, s·j + l - p] w[k, l, c, o].

    s is the stride; x is taken as 0 outside, where the padding p reaches. Shapes: x (N, C, H, W), w (K, K, C,
    O), inputs before outputs as in `linear`, b (O,); result (N, O, (H + 2p - K) // s + 1, …).
    It is a cross-correlation: the kernel is not flipped, as in all of deep learning (Goodfellow, Bengio,
    Courville: Deep Learning, 2016, § 9.1).
    """
    window = Window(len(w), stride, pad)
    y = np.zeros((len(x), *window.output_size(x.shape[1:]), w.shape[3]), x.dtype)
    large = padded(x, pad)
    for k, l in window.places():
        y += np.tensordot(window.seen(large, k, l), w[k, l], axes=(1, 0))
    return (y + b).transpose(0, 3, 1, 2)


def conv2d_backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray, stride: int = 1, pad: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients (dx, dw, db) of `conv2d`.

    Each place (k, l) of the kernel is a `linear` layer on the entries that it sees, so dw[k, l] is their
    product with dy, summed over samples and positions, and dx adds up dy w[k, l]ᵀ where they lie.
    Shapes: dy as the result of `conv2d`, x (N, C, H, W), w (K, K, C, O); result as x, w, b.
    """
    window = Window(len(w), stride, pad)
    large = padded(x, pad)
    dlarge, dw = np.zeros_like(large), np.empty_like(w)
    for k, l in window.places():
        dw[k, l] = np.tensordot(window.seen(large, k, l), dy, axes=((0, 2, 3), (0, 2, 3)))
        target = window.seen(dlarge, k, l)
        target += np.tensordot(dy, w[k, l], axes=(1, 1)).transpose(0, 3, 1, 2)
    dx = dlarge[:, :, pad : pad + x.shape[2], pad : pad + x.shape[3]]
    return dx, dw, dy.sum(axis=(0, 2, 3))


def padded(x: np.ndarray, pad: int) -> np.ndarray:
    """Return x with `pad` rows and columns of zeros all round. Shapes: (N, C, H, W) to (N, C, H + 2p, …)."""
    return np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) if pad else x
