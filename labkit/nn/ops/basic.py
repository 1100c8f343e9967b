"""The dense layer, activation functions and losses.

`out`, here and in the other operations, is an array to write the result to instead of a new one, as in NumPy.
Activation functions apply to each element; all their arrays have the same shape, which may be any. A loss is
one number for a batch, the mean over its samples.
"""

from __future__ import annotations

import numpy as np


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return y = x w + b.

    Shapes: x (N, I), w (I, O), b (O,); result (N, O).
    """
    return x @ w + b


def linear_backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients (dx, dw, db) of `linear`: dx = dy wᵀ, dw = xᵀ dy, db = Σₙ dy.

    Shapes: dy (N, O), x (N, I), w (I, O); result (N, I), (I, O), (O,).
    Source: the chain rule, written for matrices (Goodfellow, Bengio, Courville: Deep Learning, 2016, §
    6.5.6).
    """
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)


def flatten(x: np.ndarray) -> np.ndarray:
    """Return each sample as one row, in C order. Shapes: x (N, …); result (N, product of the rest)."""
    return x.reshape(len(x), -1)


def flatten_backward(dy: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the gradient of `flatten`: dy in the shape of x. Shapes: dy (N, product), shape that of x."""
    return dy.reshape(shape)


def relu(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return max(x, 0).

    Source: V. Nair, G. E. Hinton, Rectified Linear Units Improve Restricted Boltzmann Machines, ICML 2010.
    """
    return np.maximum(x, 0, out=out)


def relu_backward(dy: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the gradient of `relu`, computed from its output y: dy where y > 0, else 0.

    At the kink, x = 0, every value in 0 … dy is a subgradient; this function returns 0, as is usual.
    """
    return np.multiply(dy, y > 0, out=out)


def tanh(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the hyperbolic tangent of x."""
    return np.tanh(x, out=out)


def tanh_backward(dy: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the gradient of `tanh`, computed from its output y: dy (1 - y²), since tanh' = 1 - tanh²."""
    slope = np.multiply(y, y, out=out)
    np.subtract(1, slope, out=slope)
    return np.multiply(slope, dy, out=slope)


def mean_squared_error(pred: np.ndarray, target: np.ndarray) -> float:
    """Return the mean over all entries of (pred - target)², without the factor ½ of some texts.

    Shapes: pred and target (N, O). The mean is computed in float64, for any input dtype.
    """
    return float(np.mean(np.square(pred - target), dtype=np.float64))


def mean_squared_error_backward(pred: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the gradient of `mean_squared_error` with respect to pred: 2 (pred - target) / (N O).

    Shapes: pred and target (N, O); result (N, O).
    """
    return (pred - target) * pred.dtype.type(2 / pred.size)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithm of each row's softmax: zₖ - log Σⱼ exp zⱼ.

    Shapes: logits (N, K); result (N, K). Each row is shifted by its *own* maximum so that no exponential
    overflows. With the maximum of the whole array, a row far below it would underflow to log 0.
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def softmax_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean over the batch of -log softmax(logits)[label].

    Shapes: logits (N, K), labels (N,) integers in 0 … K-1. The mean is computed in float64. Unit: nats.
    """
    picked = log_softmax(logits)[np.arange(len(labels)), labels]
    return float(-np.mean(picked, dtype=np.float64))


def softmax_cross_entropy_backward(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the gradient of `softmax_cross_entropy` with respect to the logits: (softmax - one-hot) / N.

    Shapes: logits (N, K), labels (N,); result (N, K).
    Source: Bishop, Pattern Recognition and Machine Learning, 2006, eq. 4.109.
    """
    gradient = np.exp(log_softmax(logits))
    gradient[np.arange(len(labels)), labels] -= 1
    gradient /= len(labels)
    return gradient
