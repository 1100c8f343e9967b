"""Loss functions: each returns one number for a batch, the mean over its samples."""

from __future__ import annotations

import numpy as np


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
