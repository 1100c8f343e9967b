"""Convolution in its clearest form: one matrix product for each element of the kernel.

`im2col` and `winograd` compute the same faster; a test checks that the results are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ConvGeometry:
    """The geometry of a convolution: a k × k kernel, its stride, and the zero padding on every side."""

    k: int
    stride: int = 1
    pad: int = 0

    def output_size(self, image: tuple[int, ...]) -> tuple[int, int]:
        """Return the output's height and width, each (size + 2 pad - k) // stride + 1.

        `image` is (C, H, W). Raise ValueError if the kernel is larger than the padded image.
        """
        height, width = ((size + 2 * self.pad - self.k) // self.stride + 1 for size in image[1:])
        if height < 1 or width < 1:
            raise ValueError(
                f"x of shape (batch, {', '.join(map(str, image))}) padded by {self.pad} is smaller than the"
                f" kernel of {self.k} × {self.k}"
            )
        return height, width

    def inputs_at(self, x: np.ndarray, k: int, l: int) -> np.ndarray:
        """Return the view of the values that kernel element (k, l) is multiplied with, one for each output.

        Shapes: x (…, H, W), already padded; result (…, H', W').
        """
        height = (x.shape[-2] - self.k) // self.stride + 1
        width = (x.shape[-1] - self.k) // self.stride + 1
        return x[..., k : k + self.stride * height : self.stride, l : l + self.stride * width : self.stride]


def conv2d(x: np.ndarray, w: np.ndarray, b: np.ndarray, stride: int = 1, pad: int = 0) -> np.ndarray:
    """Return y[n, o, i, j] = b[o] + Σ over k, l, c of x[n, c, s·i + k - p, s·j + l - p] w[k, l, c, o].

    s is the stride; in the padding p, x is 0. Shapes: x (N, C, H, W), w (K, K, C, O) with inputs before
    outputs as in `linear`, b (O,); result (N, O, (H + 2p - K) // s + 1, …).
    Strictly speaking this is a cross-correlation: as everywhere in deep learning, the kernel is not flipped
    (Goodfellow, Bengio, Courville: Deep Learning, 2016, § 9.1).
    """
    geometry = ConvGeometry(len(w), stride, pad)
    y = np.zeros((len(x), *geometry.output_size(x.shape[1:]), w.shape[3]), x.dtype)
    x = padded(x, pad)
    for k, l in np.ndindex(w.shape[:2]):
        y += np.tensordot(geometry.inputs_at(x, k, l), w[k, l], axes=(1, 0))
    return (y + b).transpose(0, 3, 1, 2)


def conv2d_backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray, stride: int = 1, pad: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients (dx, dw, db) of `conv2d`.

    Each kernel element (k, l) is a `linear` layer on its inputs. So dw[k, l] is the product of these inputs
    with dy, summed over samples and positions, and dy w[k, l]ᵀ is added to dx at the positions of the inputs.
    Shapes: dy as the result of `conv2d`, x (N, C, H, W), w (K, K, C, O); result as x, w, b.
    """
    geometry = ConvGeometry(len(w), stride, pad)
    x_padded = padded(x, pad)
    dx_padded, dw = np.zeros_like(x_padded), np.empty_like(w)
    for k, l in np.ndindex(w.shape[:2]):
        dw[k, l] = np.tensordot(geometry.inputs_at(x_padded, k, l), dy, axes=((0, 2, 3), (0, 2, 3)))
        target = geometry.inputs_at(dx_padded, k, l)
        target += np.tensordot(dy, w[k, l], axes=(1, 1)).transpose(0, 3, 1, 2)
    dx = dx_padded[:, :, pad : pad + x.shape[2], pad : pad + x.shape[3]]
    return dx, dw, dy.sum(axis=(0, 2, 3))


def padded(x: np.ndarray, pad: int) -> np.ndarray:
    """Return x with `pad` zeros on every side. Shapes: x (N, C, H, W); result (N, C, H + 2 pad, …)."""
    return np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) if pad else x
