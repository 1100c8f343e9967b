"""The exercises of notebook 01: backpropagation by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise
from labkit.nn import ops


def linear_backward(dy, x, w):  # type: ignore[no-untyped-def]
    """Return the gradients (dx, dw, db). Shapes: dy (N, O), x (N, I), w (I, O)."""
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)


def _linear_cases() -> Sequence[Case]:
    cases = []
    for n, i, o in (1, 1, 1), (3, 3, 3), (5, 4, 3):
        for dtype in np.float64, np.float32:
            rng = np.random.default_rng(n)
            arrays = [rng.normal(size=shape).astype(dtype) for shape in ((n, o), (n, i), (i, o))]
            label = f"{n} samples, {i} inputs, {o} outputs, {dtype.__name__}"
            cases.append(Case(label, (tuple(arrays),)))
    return cases


def _wrong_axis(case: Case) -> Sequence[Any]:
    ((dy, x, w),) = case.arguments
    return [(dy @ w.T, x.T @ dy, dy.sum(axis=1))]


EXERCISES = [
    Exercise(
        reference=linear_backward,
        notebook="01",
        title="The backward pass of a linear layer",
        difficulty=2,
        minutes=10,
        points=2,
        cases=_linear_cases,
        expected=lambda case: [ops.linear_backward(*case.arguments[0])],
        suspects={
            "db sums over the outputs. The bias acts on every sample: sum over the samples": _wrong_axis
        },
        hints=("Each gradient has the shape of its parameter.", "db is a sum over axis 0."),
    ),
]
