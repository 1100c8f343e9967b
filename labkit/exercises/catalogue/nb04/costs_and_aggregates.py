"""The exercises of notebook 04 that fit a cost model, resist a wrong rank, send less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome
from mpiwatch.wording import counted


def fit_cost(nbytes, seconds):  # type: ignore[no-untyped-def]
    """Return (alpha, beta) with the smallest sum of squared relative errors of alpha + beta * nbytes.

    Shapes: nbytes (m,), in bytes; seconds (m,), measured; alpha in seconds, beta in seconds per byte.
    """
    terms = np.stack([1 / seconds, nbytes / seconds], axis=1)
    alpha, beta = np.linalg.lstsq(terms, np.ones(len(seconds)))[0]
    return alpha, beta


def trimmed_mean(rows, drop):  # type: ignore[no-untyped-def]
    """Return the mean of each column without its `drop` largest and `drop` smallest values.

    Shapes: rows (m, n) with m > 2 * drop; result (n,), in the dtype of rows. Leave rows as they are.
    """
    ordered = np.sort(rows, axis=0)
    return ordered[drop : len(rows) - drop].mean(axis=0)


def top_k(gradient, residual, k):  # type: ignore[no-untyped-def]
    """Return (indices, values) of the k largest entries of gradient + residual by absolute value.

    Leave in `residual` what is not sent. Shapes: gradient and residual (n,); indices (k,), ascending;
    values (k,).
    """
    residual += gradient
    indices = np.sort(np.argsort(np.abs(residual))[len(residual) - k :])
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def _fit_cases() -> Sequence[Case]:
    cases = []
    for m, alpha, beta, noise in (2, 1e-5, 1e-9, 0), (4, 2e-6, 5e-10, 0), (12, 4e-5, 8e-9, 0.2):
        nbytes = np.array([8.0 * 8**k for k in range(m)]) if m < 12 else np.geomspace(8, 1 << 24, m).round()
        seconds = alpha + beta * nbytes
        seconds *= np.exp(noise * np.random.default_rng(m).normal(size=m))
        spread = "with noise" if noise else "on one line"
        cases.append(Case(f"{m} measurements {spread}, up to {nbytes[-1]:.0f} bytes", ((nbytes, seconds),)))
    return cases


def _fit(case: Case, power: float) -> tuple[float, float]:
    """Return alpha and beta of least squares with errors divided by seconds ** power, by Cramer's rule."""
    ((nbytes, seconds),) = case.arguments
    weights = seconds ** (-2 * power)
    one, first, second = weights.sum(), weights @ nbytes, weights @ nbytes**2
    time, product = weights @ seconds, weights @ (nbytes * seconds)
    determinant = one * second - first**2
    return (time * second - first * product) / determinant, (one * product - first * time) / determinant


def _swapped(case: Case) -> Sequence[Any]:
    return [_fit(case, 1)[::-1]]


def _ends(case: Case) -> Sequence[Any]:
    ((nbytes, seconds),) = case.arguments
    beta = (seconds[-1] - seconds[0]) / (nbytes[-1] - nbytes[0])
    return [(seconds[0] - beta * nbytes[0], beta)]


def _rows_cases() -> Sequence[Case]:
    cases = []
    for m, n, drop, dtype in (
        (3, 1, 1, np.float64),
        (4, 3, 0, np.float64),
        (5, 3, 1, np.float64),
        (6, 5, 2, np.float32),
        (12, 1000, 2, np.float32),
    ):
        rows = np.random.default_rng([m, n]).normal(size=(m, n)).astype(dtype)
        rows[0] *= 100
        cases.append(Case(f"{m} rows, {counted(n, 'value')}, drop {drop}, {dtype.__name__}", ((rows, drop),)))
    return cases


def _trimmed(case: Case) -> Sequence[Any]:
    ((rows, drop),) = case.arguments
    kept = [sorted(column)[drop : len(rows) - drop] for column in rows.T.tolist()]
    return [np.array([sum(column) / len(column) for column in kept], rows.dtype)]


def _whole_rows_dropped(case: Case) -> Sequence[Any]:
    ((rows, drop),) = case.arguments
    order = np.argsort(np.linalg.norm(rows, axis=1))
    return [rows[order][drop : len(rows) - drop].mean(axis=0)]


def _only_largest_dropped(case: Case) -> Sequence[Any]:
    ((rows, drop),) = case.arguments
    return [np.sort(rows, axis=0)[: len(rows) - drop].mean(axis=0)]


def _divided_by_all(case: Case) -> Sequence[Any]:
    ((rows, drop),) = case.arguments
    return [np.sort(rows, axis=0)[drop : len(rows) - drop].sum(axis=0) / rows.dtype.type(len(rows))]


def _empty(case: Case) -> Sequence[Any]:
    ((rows, drop),) = case.arguments
    return [np.full(rows.shape[1], np.nan, rows.dtype) if drop == 0 else _trimmed(case)[0]]


def _top_k_cases() -> Sequence[Case]:
    cases = []
    for n, k, dtype in (1, 1, np.float64), (4, 1, np.float64), (5, 2, np.float32), (1000, 10, np.float32):
        rng = np.random.default_rng([n, k])
        gradient, residual = (rng.permutation(np.linspace(-1.1, 1, n)).astype(dtype) for _ in range(2))
        residual = np.multiply(residual, dtype(0.8))
        cases.append(Case(f"{counted(n, 'value')}, k = {k}, {dtype.__name__}", ((gradient, residual, k),)))
    return cases


def _chosen(values: np.ndarray, sizes: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    indices = np.array(sorted(range(len(sizes)), key=lambda i: -sizes[i])[:k])
    indices.sort()
    return [(indices, values[indices])]


def _sent(case: Case) -> Sequence[Any]:
    ((gradient, residual, k),) = case.arguments
    return _chosen(gradient + residual, np.abs(gradient + residual), k)


def _signed(case: Case) -> Sequence[Any]:
    ((gradient, residual, k),) = case.arguments
    return _chosen(gradient + residual, gradient + residual, k)


def _without_feedback(case: Case) -> Sequence[Any]:
    ((gradient, _, k),) = case.arguments
    return _chosen(gradient, np.abs(gradient), k)


def _values_of_the_gradient(case: Case) -> Sequence[Any]:
    ((gradient, _, _),), ((indices, _),) = case.arguments, _sent(case)
    return [(indices, gradient[indices])]


def _absolute_values(case: Case) -> Sequence[Any]:
    ((indices, values),) = _sent(case)
    return [(indices, np.abs(values))]


def _zeroed_first(case: Case) -> Sequence[Any]:
    ((indices, values),) = _sent(case)
    return [(indices, np.zeros_like(values))]


def _not_ascending(case: Case) -> Sequence[Any]:
    ((gradient, residual, k),) = case.arguments
    indices = np.argsort(np.abs(gradient + residual))[len(gradient) - k :]
    return [(indices, (gradient + residual)[indices])]


def _look_residual(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    ((gradient, residual, _),) = case.arguments
    got, total = outcomes[0].arguments[1], gradient + residual
    ((indices, _),) = _sent(case)
    wanted = total.copy()
    wanted[indices] = 0
    if np.allclose(got, wanted, rtol=1e-5, atol=1e-6):
        return None
    if np.allclose(got, total, rtol=1e-5, atol=1e-6):
        return "`residual` still holds the entries that are sent, so they are sent again: set them to 0 there"
    if np.array_equal(got, residual):
        return "`residual` is unchanged, so what is not sent is lost: add `gradient` to it, in place"
    if not got.any():
        return "`residual` is all zeros, so what is not sent is lost: set only the entries that are sent to 0"
    place = int(np.flatnonzero(~np.isclose(got, wanted, rtol=1e-5, atol=1e-6))[0])
    return f"residual[{place}] is {got[place]:.4g} after the call, expected {wanted[place]:.4g}"


EXERCISES = [
    Exercise(
        reference=fit_cost,
        title="Fit latency and bandwidth to your measurements",
        difficulty=3,
        minutes=15,
        cases=_fit_cases,
        expected=lambda case: [_fit(case, 1)],
        suspects={
            "the pair is in the wrong order: return alpha first, then beta": _swapped,
            "these are the smallest absolute errors, so the largest sizes decide alone: divide each equation "
            "by its measured time": lambda case: [_fit(case, 0)],
            "the errors are divided by the square of the time, so the smallest sizes decide alone: divide by "
            "the time (np.polyfit squares its weights itself)": lambda case: [_fit(case, 2)],
            "the errors are divided by the square root of the time: divide by the time (np.polyfit squares "
            "its weights itself)": lambda case: [_fit(case, 0.5)],
            "only the first and the last measurement count: use all of them": _ends,
        },
        hints=(
            "A relative error is (alpha + beta · n) / t - 1. It is linear in alpha and beta.",
            "So each measurement gives one equation: alpha · (1 / t) + beta · (n / t) = 1.",
            "`np.linalg.lstsq(terms, np.ones(m))[0]`, where `terms` has the columns 1 / t and n / t.",
        ),
        tolerance=1e-5,
    ),
    Exercise(
        reference=trimmed_mean,
        title="The trimmed mean",
        difficulty=2,
        minutes=10,
        cases=_rows_cases,
        expected=_trimmed,
        suspects={
            "this sorts along the rows: sort each column by itself (axis 0)": lambda case: [
                np.sort(case.arguments[0][0], axis=1)[
                    case.arguments[0][1] : len(case.arguments[0][0]) - case.arguments[0][1]
                ].mean(axis=0)
            ],
            "this drops whole rows: a row can be extreme in one column and ordinary in another": (
                _whole_rows_dropped
            ),
            "only the largest values are dropped: drop the smallest as well": _only_largest_dropped,
            "the sum of the kept values is divided by the number of all rows: divide by the number kept": (
                _divided_by_all
            ),
            "with drop = 0 nothing is left: rows[0:-0] is empty. Slice up to len(rows) - drop": _empty,
            "this is the mean of all rows: nothing is dropped": lambda case: [
                case.arguments[0][0].mean(axis=0)
            ],
            "this is the median: it drops more than `drop` values": lambda case: [
                np.median(case.arguments[0][0], axis=0)
            ],
        },
        hints=(
            "`np.sort(rows, axis=0)` sorts each column and leaves `rows` as they are.",
            "Keep the sorted rows from `drop` up to `len(rows) - drop`, then take the mean of each column.",
        ),
    ),
    Exercise(
        reference=top_k,
        title="Send only the k largest entries, and remember the rest",
        difficulty=3,
        minutes=15,
        cases=_top_k_cases,
        expected=_sent,
        suspects={
            "these are the largest entries by sign: choose by absolute value": _signed,
            "`residual` is not added before choosing: choose from gradient + residual": _without_feedback,
            "the indices are right, but the values are those of `gradient`: send gradient + residual": (
                _values_of_the_gradient
            ),
            "the values lack their sign: send the entries, not their absolute values": _absolute_values,
            "the values are zero: take them out before you set them to 0 in `residual`": _zeroed_first,
            "the entries are right, but the indices are not in ascending order: sort them": _not_ascending,
        },
        look=_look_residual,
        hints=(
            "First `residual += gradient`: now `residual` holds all that still has to be sent.",
            "`np.argsort(np.abs(residual))` lists the indices, that of the smallest entry first. Take the "
            "last k, and sort them.",
            "`residual[indices]` with an array of indices is a copy: set these entries to 0 afterwards.",
        ),
        may_change=(1,),
    ),
]
