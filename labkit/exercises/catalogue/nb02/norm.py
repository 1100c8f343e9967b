"""Batch norm: the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise
from labkit.nn import ops

CHANNEL = (0, 2, 3)  # the axes that share a channel


def batch_norm(x, gamma, beta):  # type: ignore[no-untyped-def]
    """Return gamma · x̂ + beta. Shapes: x (N, C, H, W), gamma and beta (C,)."""
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    sigma = np.sqrt(x.var(axis=(0, 2, 3), keepdims=True) + 1e-5)
    return gamma[:, None, None] * ((x - mean) / sigma) + beta[:, None, None]


def batch_norm_backward(dy, x, gamma):  # type: ignore[no-untyped-def]
    """Return (dx, dgamma, dbeta). Shapes: dy and x (N, C, H, W), gamma (C,)."""
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    sigma = np.sqrt(x.var(axis=(0, 2, 3), keepdims=True) + 1e-5)
    x_hat, m = (x - mean) / sigma, x.size // x.shape[1]
    dgamma, dbeta = (dy * x_hat).sum(axis=(0, 2, 3)), dy.sum(axis=(0, 2, 3))
    inner = dy - dbeta[:, None, None] / m - x_hat * dgamma[:, None, None] / m
    return gamma[:, None, None] / sigma * inner, dgamma, dbeta


def _norm_cases(with_dy: bool) -> Callable[[], Sequence[Case]]:
    def cases() -> Sequence[Case]:
        made = []
        for shape in (3, 2, 1, 2), (2, 2, 2, 3), (4, 3, 5, 5):
            for dtype in np.float64, np.float32:
                rng = np.random.default_rng(sum(shape))
                x = rng.normal(2, 3, size=shape).astype(dtype)
                gamma, beta = rng.normal(1, 1, size=(2, shape[1])).astype(dtype)
                dy = rng.normal(1, 1, size=shape).astype(dtype)
                arguments = (dy, x, gamma) if with_dy else (x, gamma, beta)
                made.append(Case(f"x of shape {shape}, {dtype.__name__}", (arguments,)))
        if not with_dy:
            x = np.full((2, 2, 2, 2), 0.5)
            x[:, 1] = 0.5 + 0.001 * np.arange(8).reshape(2, 2, 2)
            label = "a channel of equal entries, and one of nearly equal ones, float64"
            made.append(Case(label, ((x, np.ones(2), np.zeros(2)),)))
        return made

    return cases


def _normalised(
    axes: tuple[int, ...] = CHANNEL, freedom: int = 0, **how: bool
) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of batch_norm: statistics over these axes, with ε and σ in their places or not."""

    def suspect(case: Case) -> Sequence[Any]:
        ((x, gamma, beta),) = case.arguments
        with np.errstate(all="ignore"):
            var = x.var(axis=axes, keepdims=True, ddof=freedom)
            epsilon = x.dtype.type(0 if how.get("no_epsilon") else 1e-5)
            sigma = np.sqrt(var) + epsilon if how.get("outside") else np.sqrt(var + epsilon)
            sigma = var + epsilon if how.get("no_root") else sigma
            mean = x.dtype.type(0) if how.get("no_mean") else x.mean(axis=axes, keepdims=True)
            return [gamma[:, None, None] * ((x - mean) / sigma) + beta[:, None, None]]

    return suspect


def _norm_gradients(change: Callable[..., Sequence[np.ndarray]]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of batch_norm_backward: what `change` makes of dy, x, γ, x̂, σ, dγ, dβ and M."""

    def suspect(case: Case) -> Sequence[Any]:
        ((dy, x, gamma),) = case.arguments
        scale = gamma[:, None, None]
        sigma = np.sqrt(x.var(axis=CHANNEL, keepdims=True) + x.dtype.type(1e-5))
        x_hat = (x - x.mean(axis=CHANNEL, keepdims=True)) / sigma
        mean = dy.mean(axis=CHANNEL, keepdims=True)
        slope = (dy * x_hat).mean(axis=CHANNEL, keepdims=True)
        dgamma, dbeta = (dy * x_hat).sum(axis=CHANNEL), dy.sum(axis=CHANNEL)
        right = scale / sigma * (dy - mean - x_hat * slope), dgamma, dbeta
        return [tuple(change(right, dy, x, scale / sigma, x_hat, mean, slope))]

    return suspect


EXERCISES = [
    Exercise(
        reference=batch_norm,
        title="Batch norm",
        difficulty=1,
        minutes=5,
        cases=_norm_cases(with_dy=False),
        expected=lambda case: [
            ops.batch_norm(x, gamma, beta, *ops.batch_statistics(x)) for x, gamma, beta in case.arguments
        ],
        suspects={
            "each image has statistics of its own: take them over the samples, too": _normalised((2, 3)),
            "each pixel has statistics of its own: take them over rows and columns, too": _normalised((0,)),
            "all channels share one mean and variance: each channel has its own": _normalised((0, 1, 2, 3)),
            "the statistics are over channels, rows and columns: take samples, rows and columns": _normalised(
                (1, 2, 3)
            ),
            "the variance is divided by M - 1: here it is divided by M": _normalised(freedom=1),
            "ε is missing: a channel of equal entries divides by 0": _normalised(no_epsilon=True),
            "ε is added to σ: it belongs under the root, to the variance": _normalised(outside=True),
            "x - mean is divided by the variance: divide by σ, its root": _normalised(no_root=True),
            "the mean is not subtracted": _normalised(no_mean=True),
        },
        hints=(
            "A channel is shared by axes 0, 2 and 3.",
            "keepdims=True gives the statistics the shape (1, C, 1, 1), which fits x. "
            "gamma[:, None, None] fits it as well.",
        ),
    ),
    Exercise(
        reference=batch_norm_backward,
        title="The backward pass of batch norm",
        difficulty=4,
        minutes=20,
        cases=_norm_cases(with_dy=True),
        expected=lambda case: [
            ops.batch_norm_backward(dy, x, gamma, *ops.batch_statistics(x)) for dy, x, gamma in case.arguments
        ],
        suspects={
            "dx: mean and variance are treated as constants. Both depend on x": _norm_gradients(
                lambda right, dy, x, scale, x_hat, mean, slope: (scale * dy, *right[1:])
            ),
            "dx: the path through the mean is missing, dbeta / M": _norm_gradients(
                lambda right, dy, x, scale, x_hat, mean, slope: (scale * (dy - x_hat * slope), *right[1:])
            ),
            "dx: the path through the variance is missing, x̂ dgamma / M": _norm_gradients(
                lambda right, dy, x, scale, x_hat, mean, slope: (scale * (dy - mean), *right[1:])
            ),
            "dx: the factor gamma is missing": _norm_gradients(
                lambda right, dy, x, scale, x_hat, mean, slope: (
                    (dy - mean - x_hat * slope)
                    / np.sqrt(x.var(axis=CHANNEL, keepdims=True) + x.dtype.type(1e-5)),
                    *right[1:],
                )
            ),
            "dx: the sums dbeta and dgamma are not divided by M": _norm_gradients(
                lambda right, dy, x, scale, x_hat, mean, slope: (
                    scale * (dy - (mean + x_hat * slope) * x.dtype.type(x.size // x.shape[1])),
                    *right[1:],
                )
            ),
            "dx: M is the number of samples. A channel has N·H·W entries": _norm_gradients(
                lambda right, dy, x, scale, x_hat, mean, slope: (
                    scale * (dy - (mean + x_hat * slope) * x.dtype.type(x.shape[2] * x.shape[3])),
                    *right[1:],
                )
            ),
            "dgamma is made with x: it needs the normalised x̂": _norm_gradients(
                lambda right, dy, x, *_: (right[0], (dy * x).sum(axis=CHANNEL), right[2])
            ),
            "dgamma and dbeta are means: they are sums over samples, rows and columns": _norm_gradients(
                lambda right, dy, x, scale, x_hat, mean, slope: (right[0], slope.ravel(), mean.ravel())
            ),
        },
        hints=(
            "dgamma and dbeta are sums over axes 0, 2 and 3: of dy · x̂, and of dy.",
            "dx has three terms: direct, through the mean, through the variance. The formula is above.",
            "M is x.size // C. Sums of shape (C,) need [:, None, None] to fit dy.",
        ),
    ),
]
