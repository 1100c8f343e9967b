"""Batch normalisation of images: scale every channel to mean 0 and variance 1, then apply gamma and beta.

Shapes: x (N, C, H, W), gamma, beta, mean and var (C,). Each channel has M = N·H·W values.
Source: S. Ioffe, C. Szegedy, Batch Normalization, ICML 2015.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.nn.ops.workspace import matching_blocks, memory_order

EPSILON = 1e-5  # avoids a division by 0 in a channel without variance


def batch_norm(
    x: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    *,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Return gamma · (x - mean) / √(var + ε) + beta, channel by channel.

    Shapes: x (N, C, H, W), the others (C,); result as x. In training, pass the batch's mean and variance
    (`batch_statistics`); for inference, pass the running ones.
    """
    y = np.empty_like(x) if out is None else out
    scale = gamma / np.sqrt(var + x.dtype.type(EPSILON))
    shift = beta - mean * scale
    for source, target in _blocks(x, y):
        np.add(np.multiply(source, scale, out=target), shift, out=target)
    return y


def batch_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each channel's mean and variance (divided by M). Shapes: x (N, C, H, W); result (C,), (C,)."""
    m = x.dtype.type(x.size // x.shape[1])
    # One pass over x is enough: the variance is the mean square of the distances from any number near the
    # mean, less the square of that number's own distance.
    near = next(_blocks(x))[0].mean(axis=(0, 1, 2))
    total, squares = np.zeros((2, x.shape[1]), x.dtype)
    for (block,) in _blocks(x):
        distances = block - near
        total += _sum(distances)
        distances *= distances
        squares += _sum(distances)
    offset = total / m
    return near + offset, squares / m - offset * offset


def batch_norm_backward(
    dy: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    *,
    out: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients (dx, dgamma, dbeta) of `batch_norm` in training; mean and var are those of x.

    With σ = √(var + ε) and x̂ = (x - mean) / σ: dbeta = Σ dy, dgamma = Σ dy x̂, and, since mean and var depend
    on every value of x, dx = gamma / σ · (dy - dbeta / M - x̂ dgamma / M).
    Shapes: dy and x (N, C, H, W), the others (C,); result as x, (C,), (C,).
    """
    dx = np.empty_like(x) if out is None else out
    m = x.dtype.type(x.size // x.shape[1])
    inverse = 1 / np.sqrt(var + x.dtype.type(EPSILON))
    dbeta, dgamma = np.zeros_like(gamma), np.zeros_like(gamma)
    for upstream, block in _blocks(dy, x):
        dbeta += _sum(upstream)
        centred = block - mean
        centred *= upstream
        dgamma += _sum(centred)
    dgamma *= inverse
    # dx = a dy + b (x - mean) + c
    a = gamma * inverse
    b = -a * inverse * dgamma / m
    c = -a * dbeta / m - b * mean
    for upstream, block, target in _blocks(dy, x, dx):
        rest = block * b
        rest += c
        np.add(np.multiply(upstream, a, out=target), rest, out=target)
    return dx, dgamma, dbeta


def _sum(x: np.ndarray) -> np.ndarray:
    """Return the sum over all but the last axis, as a product with ones. Shapes: x (…, C); result (C,).

    BLAS keeps many partial sums at a time, which is faster and rounds less than adding row after row.
    """
    rows = x.reshape(-1, x.shape[-1])
    return np.ones(len(rows), rows.dtype) @ rows


def _blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield matching blocks of the arrays: views with axes N, H and W as in memory, and C as the last one."""
    axes = [axis for axis in memory_order(arrays[0]) if axis != 1]
    return matching_blocks(arrays, [*axes, 1])
