"""The exercises of notebook 01 on ranks: the mean gradient, and a training step."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.exercises.catalogue.nb01.layers import exercise
from labkit.exercises.catalogue.nb01.model import MLP, initial, mlp_gradient, samples, whole
from labkit.exercises.exercise import Case, Outcome


def average_gradients(comm, grads, samples):
    """Leave in grads, on every rank, the mean gradient over the samples of all ranks.

    Shapes: grads (P,), this rank's mean gradient over its number of `samples`; changed in place. A rank
    without samples brings zeros. Nothing is returned.
    """
    total = comm.allreduce(samples)
    weighted = grads * grads.dtype.type(samples / total)
    comm.Allreduce(weighted, grads)


def training_step(comm, params, x, labels, lr):
    """Take one step of gradient descent on the samples of all ranks; return their mean loss before the step.

    Shapes: params (P,), equal on all ranks; changed in place. x (N, 64) and labels (N,) are this rank's
    samples; N may be 0. Every rank returns the same loss.
    """
    n = len(labels)
    loss, grads = mlp_gradient(params, x, labels) if n else (0.0, np.zeros_like(params))
    average_gradients(comm, grads, n)
    params -= lr * grads
    return comm.allreduce(loss * n) / comm.allreduce(n)


STEP = "\n\n".join([MLP, inspect.getsource(mlp_gradient), inspect.getsource(average_gradients)])


def _gradients(case: Case) -> list[np.ndarray]:
    return [grads.astype(float) for grads, _ in case.arguments]


def _counts(case: Case) -> list[int]:
    return [n for _, n in case.arguments]


def _on_all(case: Case, value: np.ndarray) -> Sequence[Any]:
    return [value.astype(case.arguments[0][0].dtype)] * case.ranks


def _average_cases() -> Sequence[Case]:
    """Return cases with unequal numbers of samples; a rank without samples has a gradient of zeros."""
    cases = []
    for dtype in np.float32, np.float64:
        for counts in (1, 3), (4,), (5, 2, 0), (1, 2, 3, 4), (2, 2, 2):
            each = [
                np.multiply(np.random.default_rng((rank, n)).normal(size=7), n > 0).astype(dtype)
                for rank, n in enumerate(counts)
            ]
            label = f"p = {len(counts)}, samples by rank {counts}, {dtype.__name__}"
            cases.append(Case(label, tuple(zip(each, counts, strict=True))))
    return cases


def _mean(case: Case) -> Sequence[Any]:
    return _on_all(case, np.average(_gradients(case), axis=0, weights=_counts(case)))


def _step_cases() -> Sequence[Case]:
    return [
        Case(
            f"p = {len(counts)}, samples by rank {counts}, {dtype.__name__}",
            tuple((initial(dtype), *samples(n, rank, dtype), 0.5) for rank, n in enumerate(counts)),
        )
        for dtype in (np.float64, np.float32)
        for counts in ((2, 5), (4,), (3, 0, 1), (1, 2, 3, 4))
    ]


def _gathered(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the params and the samples of all ranks together."""
    params, xs, labels, _ = zip(*case.arguments, strict=True)
    return params[0].astype(float), np.concatenate(xs).astype(float), np.concatenate(labels)


def _local(case: Case) -> list[float]:
    return [whole(params, x, labels)[0] if len(labels) else 0.0 for params, x, labels, _ in case.arguments]


def _step_look(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    """Check the parameters after the step, which the function does not return."""
    params, x, labels = _gathered(case)
    lr, mean = case.arguments[0][3], whole(params, x, labels)[1]
    own = [whole(params, x.astype(float), y)[1] if len(y) else 0 * params for _, x, y, _ in case.arguments]
    for rank, outcome in enumerate(outcomes):
        step = params - outcome.arguments[0]
        near = 1e-9 if outcome.arguments[0].dtype == np.float64 else 1e-5
        mistakes = {
            "": lr * mean,
            "params are unchanged: `params = …` makes a new array; use `params -= …`": 0 * mean,
            "params moved along the gradient, which raises the loss; subtract lr * grads": -lr * mean,
            "the step is the gradient itself; multiply it by lr": mean,
            "the step follows this rank's own gradient; average the gradients before it": lr * own[rank],
            "the step is the mean of the ranks' means; weight each by its samples": lr * np.mean(own, axis=0),
        }
        texts = (text for text, wrong in mistakes.items() if np.allclose(step, wrong, rtol=0, atol=near))
        if text := next(texts, "the loss is right, but params did not move by -lr * mean gradient"):
            return f"rank {rank}: {text}"
    return None


EXERCISES = [
    exercise(
        average_gradients,
        "The mean over the samples of all ranks",
        difficulty=3,
        minutes=10,
        on_ranks=True,
        cases=_average_cases,
        expected=_mean,
        result_in=0,
        suspects={
            "grads is unchanged: `grads = …` only gives the name to another array; write into it, "
            "`grads[...] = …`": lambda case: [grads for grads, _ in case.arguments],
            "this is the mean of the ranks' means; weight each rank by its samples": lambda case: _on_all(
                case, np.mean(_gradients(case), axis=0)
            ),
            "this is the sum of the ranks' gradients; it has no weights": lambda case: _on_all(
                case, np.sum(_gradients(case), axis=0)
            ),
            "this is the weighted sum; divide by the samples of all ranks": lambda case: _on_all(
                case, np.average(_gradients(case), axis=0, weights=_counts(case)) * sum(_counts(case))
            ),
            "each rank has its own weighted gradient; the sum over the ranks is missing": lambda case: [
                (grads * (n / sum(_counts(case)))).astype(grads.dtype) for grads, n in case.arguments
            ],
        },
        hints=(
            "Multiply by this rank's weight, samples / all samples; then add up over the ranks.",
            "comm.allreduce(samples) is the number of samples of all ranks.",
            "`comm.Allreduce(weighted, grads)` leaves the sum of all ranks' `weighted` in grads.",
        ),
    ),
    exercise(
        training_step,
        "One training step on all ranks",
        difficulty=3,
        minutes=15,
        on_ranks=True,
        prelude=STEP,
        tolerance=1e-5,  # float32 samples
        cases=_step_cases,
        expected=lambda case: [whole(*_gathered(case))[0]] * case.ranks,
        may_change=(0,),
        look=_step_look,
        suspects={
            "this is the loss of this rank's samples; return the mean over the samples of all ranks": _local,
            "this is the mean of the ranks' losses; weight each by its number of samples": lambda case: (
                [float(np.mean(_local(case)))] * case.ranks
            ),
            "this is the sum of the ranks' losses; weight each by its samples / all samples": lambda case: (
                [float(np.sum(_local(case)))] * case.ranks
            ),
        },
        hints=(
            "Loss and gradient of this rank's samples, average_gradients, the step, the mean loss.",
            "The collectives are in average_gradients and in the mean loss. Every rank calls both, in the "
            "same order, outside any `if`.",
            "The mean loss is comm.allreduce(loss * n) / comm.allreduce(n), as for the gradient.",
        ),
    ),
]
