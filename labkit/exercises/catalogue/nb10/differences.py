"""The exercise of notebook 10 about report E: how sure a measured difference is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise

# mypy: disable-error-code="no-untyped-def"


def confidence_interval(a, b, level, rng):
    """Return (low, high): the bootstrap confidence interval of median(b) / median(a).

    Shapes: a (n,), b (m,), the times of two programs, in s. level: 0.95 for a 95 % interval. Draw 2,000
    samples of a with `rng.choice(a, (2000, n))`, then as many of b with `rng.choice(b, (2000, m))`.
    """
    medians_a = np.median(rng.choice(a, (2000, len(a))), axis=1)
    medians_b = np.median(rng.choice(b, (2000, len(b))), axis=1)
    return tuple(np.quantile(medians_b / medians_a, [(1 - level) / 2, (1 + level) / 2]))


RESAMPLES = 2000


def _case(n: int, m: int, faster: float, level: float) -> Case:
    rng = np.random.default_rng([n, m])
    a, b = 1 + rng.exponential(0.2, n), faster * (1 + rng.exponential(0.3, m))
    label = f"{n} and {m} times, a {100 * level:g} % interval"
    return Case(label, ((a, b, level, np.random.default_rng(17)),))


def _cases() -> Sequence[Case]:
    return [
        _case(5, 5, 0.9, 0.95),
        _case(20, 20, 1.0, 0.95),
        _case(9, 14, 0.8, 0.9),
        _case(1, 1, 0.92, 0.95),
        _case(30, 12, 1.1, 0.5),
    ]


def _of(
    statistic: Callable[[np.ndarray, np.ndarray], Any] = lambda a, b: np.median(b, 1) / np.median(a, 1),
    ends: Callable[[np.ndarray, float], Any] = lambda ratios, level: _quantiles(ratios, (1 - level) / 2),
    same: bool = False,
    swapped: bool = False,
) -> Callable[[Case], Sequence[Any]]:
    """Return the interval with something else in the place of one of its parts."""

    def results(case: Case) -> Sequence[Any]:
        a, b, level, _ = case.arguments[0]
        rng = np.random.default_rng(17)  # the argument is used up by the call
        first = rng.integers(len(a), size=(RESAMPLES, len(a)))
        if same:
            second = first if len(a) == len(b) else rng.integers(len(b), size=(RESAMPLES, len(b)))
        else:
            second = rng.integers(len(b), size=(RESAMPLES, len(b)))
        if swapped:
            rng = np.random.default_rng(17)
            second = rng.integers(len(b), size=(RESAMPLES, len(b)))
            first = rng.integers(len(a), size=(RESAMPLES, len(a)))
        return [tuple(map(float, ends(statistic(a[first], b[second]), level)))]

    return results


def _quantiles(ratios: np.ndarray, tail: float) -> np.ndarray:
    return np.array([np.quantile(ratios, tail), np.quantile(ratios, 1 - tail)])


def _normal(ratios: np.ndarray, level: float) -> np.ndarray:
    half = 1.96 * ratios.std()
    return np.array([ratios.mean() - half, ratios.mean() + half])


def _unresampled(case: Case) -> Sequence[Any]:
    a, b, level, _ = case.arguments[0]
    middle, tail = np.median(a), (1 - level) / 2
    return [(float(np.quantile(b, tail) / middle), float(np.quantile(b, 1 - tail) / middle))]


CONFIDENCE_INTERVAL = Exercise(
    reference=confidence_interval,
    title="How sure is a difference?",
    difficulty=3,
    minutes=15,
    cases=_cases,
    expected=_of(),
    suspects={
        "this is the interval of median(a) / median(b); the ratio is median(b) / median(a)": _of(
            lambda a, b: np.median(a, 1) / np.median(b, 1)
        ),
        "the means are compared, and one late run moves a mean; compare the medians": _of(
            lambda a, b: b.mean(1) / a.mean(1)
        ),
        "this is the interval of the difference of the medians in seconds; return that of their ratio": _of(
            lambda a, b: np.median(b, 1) - np.median(a, 1)
        ),
        "each end leaves out 1 - level, so both together leave out twice as much; each tail has half "
        "of it": _of(ends=lambda ratios, level: _quantiles(ratios, 1 - level)),
        "these are the lowest and the highest of all ratios; leave out (1 - level) / 2 at each end": _of(
            ends=lambda ratios, level: _quantiles(ratios, 0)
        ),
        "this is the mean of the ratios ± 1.96 standard deviations, which takes them to be normal and "
        "ignores level; take the quantiles of the ratios": _of(ends=_normal),
        "these are quantiles of the times themselves: they say where single runs lie; resample, and take the "
        "quantiles of the ratio of the medians": _unresampled,
        "a and b are drawn in pairs, with the same indices; the runs are independent, so draw for each": _of(
            same=True
        ),
        "b is drawn before a: with the same generator the other order gives other samples": _of(swapped=True),
    },
    hints=(
        "`rng.choice(a, (2000, len(a)))` is an array of 2,000 rows; each row is a sample of a with "
        "replacement.",
        "Take the median of each row, np.median(…, axis=1), for a and for b, and divide row by row.",
        "np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2]) are the two ends.",
    ),
)

EXERCISES = [CONFIDENCE_INTERVAL]
