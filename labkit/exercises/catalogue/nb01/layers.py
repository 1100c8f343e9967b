"""The exercises of notebook 01 about losses and layers."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise
from labkit.nn import ops

Results = Callable[[Case], Sequence[Any]]


def exercise(reference: Callable[..., Any], title: str, *, minutes: int, **fields: Any) -> Exercise:
    """Return an exercise of this notebook; it gives one point for five minutes."""
    return Exercise(reference, title=title, minutes=minutes, **fields)


def mean_squared_error_backward(pred, target):
    """Return the gradient of the mean squared error with respect to pred. Shapes: all (N, O)."""
    return (pred - target) * (2 / pred.size)


def linear_backward(dy, x, w):
    """Return the gradients (dx, dw, db). Shapes: dy (N, O), x (N, I), w (I, O)."""
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)


def softmax_cross_entropy(z, labels):
    """Return the mean of -log softmax(z)[label], one number. Shapes: z (N, K), labels (N,) in 0 … K-1."""
    shifted = z - z.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-np.mean(log_p[np.arange(len(labels)), labels]))


def softmax_cross_entropy_backward(z, labels):
    """Return the gradient with respect to z. Shapes: z (N, K), labels (N,); result (N, K)."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    gradient = e / e.sum(axis=1, keepdims=True)
    gradient[np.arange(len(labels)), labels] -= 1
    return gradient / len(labels)


def relu_backward(dy, x):
    """Return the gradient of relu with respect to its input x; 0 where x is 0. Shapes: all the same."""
    return dy * (x > 0)


def _wrong(function: Callable[..., Any]) -> Results:
    """Return a suspect: what `function` returns in the place of the right one."""

    def results(case: Case) -> Sequence[Any]:
        with np.errstate(all="ignore"):  # overflow is the mistake of some
            return [function(*case.arguments[0])]

    return results


def _both_dtypes(label: str, *arrays: np.ndarray) -> list[Case]:
    """Return a case in float64 and one in float32; arrays of integers stay as they are."""
    cases = []
    for dtype in np.float64, np.float32:
        cast = tuple(array if array.dtype.kind == "i" else array.astype(dtype) for array in arrays)
        cases.append(Case(f"{label}, {dtype.__name__}", (cast,)))
    return cases


def _error_cases() -> Sequence[Case]:
    cases = []
    for n, o in (1, 1), (4, 1), (3, 3), (5, 2):
        rng = np.random.default_rng(n)
        cases += _both_dtypes(f"N = {n}, O = {o}", rng.normal(size=(n, o)), rng.normal(size=(n, o)))
    return cases


def _linear_cases() -> Sequence[Case]:
    cases = []
    for n, i, o in (1, 1, 1), (3, 3, 3), (5, 4, 3):
        rng = np.random.default_rng(n)
        arrays = [rng.normal(size=shape) for shape in ((n, o), (n, i), (i, o))]
        cases += _both_dtypes(f"N = {n}, I = {i}, O = {o}", *arrays)
    return cases


def _softmax_cases() -> Sequence[Case]:
    rng = np.random.default_rng(5)
    small, large, far = np.array([[0.0, 1, 2]]), np.array([[1000.0, 1001, 1002]]), np.array([[0.0, 1000, 5]])
    batches = {
        "1 sample, 3 classes": (small, [1]),
        "3 samples, 3 classes": (rng.normal(size=(3, 3)), [2, 0, 1]),
        "5 samples, 10 classes": (rng.normal(size=(5, 10)), [9, 0, 0, 3, 5]),
        "logits near 1000": (large, [1]),
        "a logit 1000 below the largest": (far, [0]),
        "a row of logits near 0, another near 1000": (np.concatenate([small, large]), [2, 0]),
        "a row of logits near 0, another near -1000": (np.concatenate([small, -large]), [2, 0]),
    }
    return [case for name, (z, y) in batches.items() for case in _both_dtypes(name, z, np.array(y))]


def _cross_entropy(case: Case) -> Sequence[Any]:
    ((z, labels),) = case.arguments
    each = [np.logaddexp.reduce(row) - row[label] for row, label in zip(z.astype(float), labels, strict=True)]
    return [float(np.mean(each))]


def _p(z: np.ndarray, shift: Any) -> np.ndarray:
    return np.exp(z - shift) / np.exp(z - shift).sum(axis=1, keepdims=True)


def _picked(log_p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return log_p[np.arange(len(labels)), labels]


def _log_of_sum(z: np.ndarray, labels: np.ndarray, shift: Any) -> float:
    shifted = z - shift
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-np.mean(_picked(log_p, labels)))


def _all_columns(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    gradient = _p(z, z.max(axis=1, keepdims=True))
    gradient[:, labels] -= 1
    return gradient / z.dtype.type(len(labels))


def _relu_cases() -> Sequence[Case]:
    rng = np.random.default_rng(6)
    x = np.array([[-1.0, 0.0, 2.0]])
    return [
        *_both_dtypes("x = [[-1, 0, 2]]", np.array([[3.0, 5.0, -7.0]]), x),
        *_both_dtypes("4 samples, 3 units", rng.normal(size=(4, 3)), rng.normal(size=(4, 3))),
        *_both_dtypes("5 values, all below 0", rng.normal(size=5), -np.ones(5)),
    ]


EXERCISES = [
    exercise(
        mean_squared_error_backward,
        "Through the loss",
        difficulty=1,
        minutes=5,
        cases=_error_cases,
        expected=lambda case: [ops.mean_squared_error_backward(*case.arguments[0])],
        suspects={
            "the mean is forgotten: divide by the number of entries, pred.size": _wrong(
                lambda pred, target: (pred - target) * 2
            ),
            "this divides by the samples only; the mean is over all entries, pred.size": _wrong(
                lambda pred, target: (pred - target) * (2 / len(pred))
            ),
            "the sign is wrong: predicted minus true": _wrong(
                lambda pred, target: (target - pred) * (2 / pred.size)
            ),
            "the factor 2 of the derivative of a square is missing": _wrong(
                lambda pred, target: (pred - target) / pred.size
            ),
        },
        hints=(
            "Each entry of pred appears in one term of the loss. Differentiate that term.",
            "The derivative of u² is 2u, and the mean divides by pred.size.",
        ),
    ),
    exercise(
        linear_backward,
        "Through a linear layer",
        difficulty=2,
        minutes=10,
        cases=_linear_cases,
        expected=lambda case: [ops.linear_backward(*case.arguments[0])],
        suspects={
            "db sums over the outputs. The bias acts on every sample: sum over the samples": _wrong(
                lambda dy, x, w: (dy @ w.T, x.T @ dy, dy.sum(axis=1))
            ),
            "db is the mean over the samples; the loss has divided by their number already: take the "
            "sum": _wrong(lambda dy, x, w: (dy @ w.T, x.T @ dy, dy.mean(axis=0))),
            "dw is transposed: it needs the shape of w": _wrong(
                lambda dy, x, w: (dy @ w.T, dy.T @ x, dy.sum(axis=0))
            ),
            "dx and dw are swapped: return (dx, dw, db)": _wrong(
                lambda dy, x, w: (x.T @ dy, dy @ w.T, dy.sum(axis=0))
            ),
        },
        hints=(
            "Each gradient has the shape of its array: dx that of x, dw that of w, db (O,).",
            "There is one way only to multiply dy (N, O) with w or x, transposed or not, to get each shape.",
            "dx = dy @ w.T and dw = x.T @ dy. A bias acts on every sample, so db is a sum over axis 0.",
        ),
    ),
    exercise(
        softmax_cross_entropy,
        "A loss for classes that never overflows",
        difficulty=3,
        minutes=10,
        cases=_softmax_cases,
        expected=_cross_entropy,
        tolerance=1e-5,  # float32 logits
        suspects={
            "this is the sum over the samples; take the mean": lambda case: [
                _cross_entropy(case)[0] * len(case.arguments[0][1])
            ],
            "the sign is wrong: the loss is minus the logarithm of a probability": lambda case: [
                -_cross_entropy(case)[0]
            ],
            "this averages over all classes; pick the logarithm at the label of each sample": _wrong(
                lambda z, labels: float(-np.mean(ops.log_softmax(z)))
            ),
            "log of a p that is 0: compute log p as z - max - log(sum(exp(z - max))), without p": _wrong(
                lambda z, labels: float(
                    -np.mean(np.log(_picked(_p(z, z.max(axis=1, keepdims=True)), labels)))
                )
            ),
            "the maximum of the whole array is subtracted, so other samples underflow to log 0: subtract "
            "the maximum of each row": _wrong(lambda z, labels: _log_of_sum(z, labels, z.max())),
            "the maximum of the whole array is subtracted, so other samples underflow to 0 / 0: subtract "
            "the maximum of each row": _wrong(
                lambda z, labels: float(-np.mean(np.log(_picked(_p(z, z.max()), labels))))
            ),
            "without a shift, exp overflows and the loss is nan: subtract the maximum of each row": _wrong(
                lambda z, labels: float(-np.mean(np.log(_picked(_p(z, 0), labels))))
            ),
            "without a shift, exp overflows and the loss is inf: subtract the maximum of each row": _wrong(
                lambda z, labels: _log_of_sum(z, labels, 0)
            ),
        },
        hints=(
            "log p = z - log(sum(exp(z))) in each row; keepdims=True keeps the shape (N, 1) for subtraction.",
            "Subtract each row's own maximum from z first: it changes no probability.",
            "log_p[np.arange(len(labels)), labels] picks one logarithm for each sample.",
        ),
    ),
    exercise(
        softmax_cross_entropy_backward,
        "Predicted minus true",
        difficulty=2,
        minutes=10,
        cases=_softmax_cases,
        expected=lambda case: [ops.softmax_cross_entropy_backward(*case.arguments[0])],
        suspects={
            "the mean is forgotten: divide by the number of samples": _wrong(
                lambda z, labels: ops.softmax_cross_entropy_backward(z, labels) * z.dtype.type(len(z))
            ),
            "this divides by all entries; the mean of the loss is over the samples": _wrong(
                lambda z, labels: ops.softmax_cross_entropy_backward(z, labels) / z.dtype.type(z.shape[1])
            ),
            "the sign is wrong: predicted minus true": _wrong(
                lambda z, labels: -ops.softmax_cross_entropy_backward(z, labels)
            ),
            "this is p / N; subtract 1 from p at the label of each sample first": _wrong(
                lambda z, labels: _p(z, z.max(axis=1, keepdims=True)) / z.dtype.type(len(z))
            ),
            "`[:, labels]` subtracts 1 in whole columns; index with [np.arange(N), labels]": _wrong(
                _all_columns
            ),
            "without a shift, exp overflows: subtract the maximum of each row before exp": _wrong(
                lambda z, labels: ops.softmax_cross_entropy_backward(z, labels) + 0 * _p(z, 0)
            ),
            "the maximum of the whole array is subtracted, so other samples become 0 / 0: subtract the "
            "maximum of each row": _wrong(
                lambda z, labels: ops.softmax_cross_entropy_backward(z, labels) + 0 * _p(z, z.max())
            ),
        },
        hints=(
            "Compute the probabilities p first, with the shift by each row's maximum.",
            "p[np.arange(N), labels] is one entry for each sample: subtract 1 there.",
            "The loss is a mean over N samples, so divide by N at the end.",
        ),
    ),
    exercise(
        relu_backward,
        "Through a ReLU",
        difficulty=1,
        minutes=5,
        cases=_relu_cases,
        expected=lambda case: [ops.relu_backward(*case.arguments[0])],
        suspects={
            "dy passes where x is 0; use 0 there": _wrong(lambda dy, x: dy * (x >= 0)),
            "the mask comes from dy; it has to come from x, the input of the forward pass": _wrong(
                lambda dy, x: dy * (dy > 0)
            ),
            "this is the derivative of relu alone; multiply it by dy": _wrong(
                lambda dy, x: (x > 0).astype(x.dtype)
            ),
            "dy is multiplied by x; its slope above 0 is 1": _wrong(lambda dy, x: dy * np.maximum(x, 0)),
        },
        hints=(
            "The slope of relu is 1 above 0 and 0 below.",
            "`x > 0` is an array of True and False, which multiply like 1 and 0.",
        ),
    ),
]
