"""Batch normalisation of images: every channel to mean 0 and variance 1, then to a learnt mean and scale.

Shapes: x (N, C, H, W), gamma, beta, mean and the others (C,). M = N·H·W entries share a channel.
Source: S. Ioffe, C. Szegedy, Batch Normalization, ICML 2015.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.nn.workspace import parts

EPSILON = 1e-5  # keeps a channel without variance from a division by 0


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

    Shapes: x (N, C, H, W), the others (C,); result as x. In training, mean and var are those of the batch
    (`batch_statistics`), afterwards the running ones.
    """
    y = np.empty_like(x) if out is None else out
    scale = gamma / np.sqrt(var + x.dtype.type(EPSILON))
    shift = beta - mean * scale
    for source, target in _blocks(x, y):
        np.add(np.multiply(source, scale, out=target), shift, out=target)
    return y


def batch_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each channel's mean and variance (divided by M) over the batch. Shapes: x (N, C, H, W); (C,)."""
    m = x.dtype.type(x.size // x.shape[1])
    mean = _sum(x.transpose(0, 2, 3, 1)) / m
    squares = np.zeros_like(mean)
    for (block,) in _blocks(x):
        centred = block - mean
        centred *= centred
        squares += _sum(centred)
    return mean, squares / m


def batch_norm_backward(
    dy: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    *,
    out: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients (dx, dgamma, dbeta) of `batch_norm` with the statistics of the batch x itself.

    With σ = √(var + ε) and x̂ = (x - mean) / σ: dbeta = Σ dy, dgamma = Σ dy x̂, and, since mean and var depend
    on every entry, dx = gamma / σ · (dy - dbeta / M - x̂ dgamma / M).
    Shapes: dy and x (N, C, H, W), the others (C,); result as x, (C,), (C,).
    """
    dx = np.empty_like(x) if out is None else out
    m = x.dtype.type(x.size // x.shape[1])
    inverse = 1 / np.sqrt(var + x.dtype.type(EPSILON))
    dbeta, dgamma = np.zeros_like(gamma), np.zeros_like(gamma)
    for above, block in _blocks(dy, x):
        dbeta += _sum(above)
        centred = block - mean
        centred *= above
        dgamma += _sum(centred)
    dgamma *= inverse
    # dx = a dy + b (x - mean) + c
    a = gamma * inverse
    b = -a * inverse * dgamma / m
    c = -a * dbeta / m - b * mean
    for above, block, target in _blocks(dy, x, dx):
        others = block * b
        others += c
        np.add(np.multiply(above, a, out=target), others, out=target)
    return dx, dgamma, dbeta


def _sum(x: np.ndarray) -> np.ndarray:
    """Return the sum over all but the last axis, (…, C) to (C,), as a product with ones.

    BLAS adds in many chains side by side: that is faster, and rounds less, than one row after the other.
    """
    rows = x.reshape(-1, x.shape[-1])
    return np.ones(len(rows), rows.dtype) @ rows


def _blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the arrays in step, part by part, as views (n, H, W, C)."""
    for part in parts(arrays[0]):
        yield tuple(x[part].transpose(0, 2, 3, 1) for x in arrays)
