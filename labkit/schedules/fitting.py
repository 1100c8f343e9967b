"""Fit the cost model to measured times: what a message, a byte and an added byte cost on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from labkit.schedules.cost_model import CostModel, cost, cost_terms
from labkit.schedules.schedule import Schedule

GUESS = CostModel(1e-5, 1e-9, 1e-9)  # only to find the slowest ranks of the first step
STEPS = 20


class Measurement(NamedTuple):
    """One call of the schedule on an array of `nbytes` bytes took so many seconds."""

    schedule: Schedule
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """A cost model and its standard errors, in seconds; NaN where a rate cannot be told from 0."""

    rates: CostModel
    errors: CostModel

    def predict(self, schedule: Schedule, nbytes: int, itemsize: int = 4) -> float:
        """Return the time of the schedule at these rates, in seconds."""
        return cost(schedule, nbytes, self.rates, itemsize)

    def __str__(self) -> str:
        units = (
            ("alpha", 1e6, "µs per message"),
            ("beta", 1e9, "ns per byte"),
            ("gamma", 1e9, "ns per byte added"),
        )
        return "\n".join(
            f"{name} = {rate * unit:.3g} ± {error * unit:.2g} {words}"
            for (name, unit, words), rate, error in zip(units, self.rates, self.errors, strict=True)
        )


def fit(measurements: Iterable[Measurement], itemsize: int = 4) -> Fit:
    """Return the rates ≥ 0 whose prices come closest to the measured times, relative errors squared.

    Which rank of a round is slowest depends on the rates, so that is looked up anew until they stay.
    """
    measured = [Measurement(*one) for one in measurements]
    if not measured:
        raise ValueError("expected at least one measurement to fit rates to")
    if any(one.seconds <= 0 for one in measured):
        raise ValueError("expected times above 0")
    rates = GUESS
    for _ in range(STEPS):
        # In units of each measured time: a line of ones is what the prices should be.
        terms = np.array([np.array(cost_terms(*one[:2], rates, itemsize)) / one.seconds for one in measured])
        before, (rates, errors) = rates, _least_squares(terms)
        if np.allclose(before, rates, rtol=1e-9, atol=0):
            break
    return Fit(rates, errors)


def _least_squares(terms: np.ndarray) -> tuple[CostModel, CostModel]:
    """Return the x ≥ 0 with the least |terms @ x - 1|², and its standard errors. Shape: terms (n, 3).

    With three unknowns one can try every set of them that is not 0; of sets as good, the smallest is taken.
    """
    scale = np.where(terms.any(axis=0), np.linalg.norm(terms, axis=0), 1)
    best, least, chosen = np.zeros(3), float(len(terms)), []
    for columns in (list(some) for count in (1, 2, 3) for some in combinations(range(3), count)):
        part = terms[:, columns] / scale[columns]
        x, _, rank, _ = np.linalg.lstsq(part, np.ones(len(part)), rcond=None)
        left = float(np.sum((part @ x - 1) ** 2))
        if rank == len(columns) and (x >= 0).all() and left < least * (1 - 1e-9) - 1e-18:
            best, least, chosen = np.zeros(3), left, columns
            best[columns] = x / scale[columns]
    errors = np.full(3, np.nan)
    if len(terms) > len(chosen):
        part = terms[:, chosen] / scale[chosen]
        variance = least / (len(terms) - len(chosen))
        errors[chosen] = np.sqrt(variance * np.diag(np.linalg.inv(part.T @ part))) / scale[chosen]
    return CostModel(*best.tolist()), CostModel(*errors.tolist())
