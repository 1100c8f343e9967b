"""The exercise of notebook 10 about report A: contributions with a direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise

# mypy: disable-error-code="no-untyped-def"


AGAINST = np.array([[3.0, 4.0], [-1.0, 0.0]])  # the second gradient points against the sum


def signed_contributions(gradients):
    """Return each rank's contribution to the sum S of the gradients, with its sign: g_r · S / S · S.

    Shapes: gradients (p, n), one row for each rank; result (p,).
    """
    total = gradients.sum(axis=0)
    return gradients @ total / (total @ total)


def _cases() -> Sequence[Case]:
    def drawn(p: int, n: int) -> Case:
        rng = np.random.default_rng([p, n])
        label = f"{p} rank{'s' * (p > 1)}, {n} entr{'ies' if n > 1 else 'y'} each"
        return Case(label, ((rng.normal(0.4, 1, (p, n)),),))

    one_against = Case("2 ranks, 2 entries each, one gradient against the other", ((AGAINST,),))
    return [one_against, drawn(3, 2), drawn(4, 10), drawn(1, 3), drawn(5, 1), drawn(7, 4)]


def _of(mistake: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[[Case], Sequence[Any]]:
    """Return what a mistake makes of the gradients and their sum."""

    def results(case: Case) -> Sequence[Any]:
        (gradients,) = case.arguments[0]
        with np.errstate(all="ignore"):
            return [mistake(gradients, gradients.sum(axis=0))]

    return results


SIGNED_CONTRIBUTIONS = Exercise(
    reference=signed_contributions,
    title="Contributions that add up to 100 %",
    difficulty=2,
    minutes=10,
    cases=_cases,
    expected=_of(lambda g, s: np.einsum("rn,n->r", g, s) / np.sum(s**2)),
    suspects={
        "these are lengths, ‖g_r‖ / ‖S‖, as in report A: the sign is lost": _of(
            lambda g, s: np.linalg.norm(g, axis=1) / np.linalg.norm(s)
        ),
        "g_r · S is divided by the length of S only once; divide by S · S": _of(
            lambda g, s: g @ s / np.linalg.norm(s)
        ),
        "this is the cosine of the angle between g_r and S; the length of g_r is lost": _of(
            lambda g, s: g @ s / np.linalg.norm(g, axis=1) / np.linalg.norm(s)
        ),
        "S is the mean of the gradients here, so the contributions add up to p; S is their sum": _of(
            lambda g, s: len(g) * (g @ s) / (s @ s)
        ),
        "each entry is divided by the entry of S: that is one number for each entry; the result has one for "
        "each rank": _of(lambda g, s: g / s),
        "the mean of the entries' fractions g_r / S is not g_r · S / S · S: an entry where S is small counts "
        "as much as one where S is large": _of(lambda g, s: (g / s).mean(axis=1)),
        "the sign is that of the entries' sum, the size ‖g_r‖ / ‖S‖; use the scalar product g_r · S": _of(
            lambda g, s: np.sign(g.sum(axis=1)) * np.linalg.norm(g, axis=1) / np.linalg.norm(s)
        ),
    },
    hints=(
        "S has one entry for each parameter: add the rows.",
        "`gradients @ total` holds the scalar product of each row with S.",
        "S · S is `total @ total`. The results of all ranks add up to 1: check that.",
    ),
)

EXERCISES = [SIGNED_CONTRIBUTIONS]
