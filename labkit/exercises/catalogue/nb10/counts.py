"""The exercise of notebook 10 about report C: what printed percentages say about the number of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise

# mypy: disable-error-code="no-untyped-def"


def possible_totals(percentages, decimals, largest):
    """Return all totals n = 1 … largest of which every percentage is a whole count. Shape: (found,).

    percentages (m,): each printed as 100 k / n with `decimals` digits after the point, for a whole k.
    The result is ascending.
    """
    totals = np.arange(1, largest + 1)[:, None]
    counts = np.round(totals * np.asarray(percentages) / 100)  # the nearest whole counts
    apart = np.abs(100 * counts / totals - percentages)
    fits = (apart < 0.5 * 10.0**-decimals + 1e-9).all(axis=1)
    return totals[fits, 0]


def _totals(case: Case) -> Sequence[Any]:
    percentages, decimals, largest = case.arguments[0]
    half = Fraction(1, 2 * 10**decimals)
    exact = [Fraction(f"{q:.{decimals}f}") for q in percentages]
    found = [
        n
        for n in range(1, largest + 1)
        if all(ceil(n * (q - half) / 100) <= floor(n * (q + half) / 100) for q in exact)
    ]
    return [np.array(found, np.int64)]


def _counted(n: int, counts: Sequence[int], decimals: int, largest: int) -> Case:
    """Return the case of these counts of n samples."""
    percentages = [round(100 * k / n, decimals) for k in counts]
    some = f"{len(counts)} percentage{'s' * (len(counts) > 1)}"
    digits = f"{decimals} digit{'s' * (decimals != 1)} after the point"
    return Case(f"{some} of {n} samples, {digits}", ((percentages, decimals, largest),))


def _cases() -> Sequence[Case]:
    return [
        _counted(2, [1], 0, 6),
        _counted(3, [1, 2], 1, 12),
        _counted(7, [1, 4], 2, 100),
        _counted(11, [2, 7, 10], 1, 60),
        _counted(96, [5, 31, 64], 0, 150),
        _counted(640, [71, 83, 69, 90, 101], 2, 900),
    ]


def _of(mistake: Callable[[np.ndarray, np.ndarray, float, int], Any]) -> Callable[[Case], Sequence[Any]]:
    """Return what a mistake makes of totals (n, 1), percentages (m,), half a unit and the largest total."""

    def results(case: Case) -> Sequence[Any]:
        percentages, decimals, largest = case.arguments[0]
        totals = np.arange(1, largest + 1)[:, None]
        return [np.asarray(mistake(totals, np.array(percentages), 0.5 * 10.0**-decimals, largest), np.int64)]

    return results


def _apart(totals: np.ndarray, percentages: np.ndarray, nearest: Callable[..., Any] = np.round) -> np.ndarray:
    return np.asarray(np.abs(100 * nearest(totals * percentages / 100 + 1e-9) / totals - percentages))


def _within(totals: np.ndarray, percentages: np.ndarray, limit: float) -> np.ndarray:
    return np.asarray(totals[(_apart(totals, percentages) < limit + 1e-9).all(1), 0])


POSSIBLE_TOTALS = Exercise(
    reference=possible_totals,
    title="Which totals fit the percentages?",
    difficulty=2,
    minutes=10,
    cases=_cases,
    expected=_totals,
    suspects={
        "these totals fit at least one percentage; a total must fit all of them": _of(
            lambda n, q, half, largest: n[(_apart(n, q) < half + 1e-9).any(1), 0]
        ),
        "the counts are rounded down; the nearest whole count can lie above": _of(
            lambda n, q, half, largest: n[(_apart(n, q, np.floor) < half + 1e-9).all(1), 0]
        ),
        "100 k / n must equal the printed percentage exactly here; that is rounded, so allow half a unit of "
        "its last digit": _of(lambda n, q, half, largest: _within(n, q, 0)),
        "a whole unit of the last digit is allowed; rounding changes a number by at most half a unit": _of(
            lambda n, q, half, largest: _within(n, q, 2 * half)
        ),
        "the percentages are compared as whole percents; they have `decimals` digits after the point": _of(
            lambda n, q, half, largest: _within(n, q, 0.5)
        ),
        "this is the smallest total only; return all that fit": _of(
            lambda n, q, half, largest: _within(n, q, half)[:1]
        ),
        "these are indices, which start at 0; the first total is 1": _of(
            lambda n, q, half, largest: _within(n, q, half) - 1
        ),
        "the largest total is left out; the totals end with `largest`": _of(
            lambda n, q, half, largest: _within(n[:-1], q, half)
        ),
    },
    hints=(
        "For one total n and one percentage q, the only whole count worth trying is round(n q / 100).",
        "The count k fits if 100 k / n is at most half a unit of the last printed digit away from q.",
        "Keep n if that holds for every percentage. Allow 1e-9 for rounding in your own computation.",
    ),
)

EXERCISES = [POSSIBLE_TOTALS]
