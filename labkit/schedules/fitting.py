"""Fit the cost model to measured times: α, β and γ of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from labkit.schedules.cost_model import CostModel, cost, cost_terms
from labkit.schedules.schedule import Schedule

INITIAL_GUESS = CostModel(1e-5, 1e-9, 1e-9)  # decides which ranks are the slowest in the first iteration
MAX_ITERATIONS = 20
GAIN = 0.01  # the least by which a further parameter has to lower the residual
DISTINCT = 0.02  # the least part of a parameter's terms that the others cannot replace


class Measurement(NamedTuple):
    """One call of the schedule on an array of `nbytes` bytes took `seconds` seconds."""

    schedule: Schedule
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class FittedModel:
    """A cost model with the standard errors of its parameters, in their units.

    A parameter whose best value would be negative is 0; its standard error says how far above 0 it may be. If
    the measurements cannot tell a parameter from the others, it is 0, its standard error is NaN, and the
    others contain it: in a ring, for example, each byte reduced comes with two bytes sent. With no more
    measurements than parameters, all standard errors are NaN.
    """

    model: CostModel
    standard_errors: CostModel

    def predict(self, schedule: Schedule, nbytes: int) -> float:
        """Return the time that the fitted model predicts for the schedule, in seconds."""
        return cost(schedule, nbytes, self.model)

    def __str__(self) -> str:
        units = (
            ("alpha", 1e6, "µs per message"),
            ("beta", 1e9, "ns per byte"),
            ("gamma", 1e9, "ns per byte reduced"),
        )
        lines = []
        for (name, scale, unit), value, error in zip(units, self.model, self.standard_errors, strict=True):
            if value == 0 and np.isnan(error):
                lines.append(f"{name}: contained in the others")
            else:
                margin = "" if np.isnan(error) else f" ± {error * scale:.2g}"
                lines.append(f"{name} = {value * scale:.3g}{margin} {unit}")
        return "\n".join(lines)


def fit_cost_model(measurements: Iterable[Measurement]) -> FittedModel:
    """Return the cost model, all parameters ≥ 0, with the smallest sum of squared relative errors.

    The parameters decide which rank is the slowest in a round, and thus the terms to fit; so fit again until
    the parameters no longer change. Raise ValueError if there is no measurement or a time is not above 0.
    """
    measured = [Measurement(*measurement) for measurement in measurements]
    if not measured:
        raise ValueError("expected at least one measurement to fit the cost model to, got none")
    if any(measurement.seconds <= 0 for measurement in measured):
        raise ValueError("expected measured times above 0 seconds")
    model = INITIAL_GUESS
    for _ in range(MAX_ITERATIONS):
        # Divided by the measured time, the terms of a perfect fit add up to 1.
        terms = np.array(
            [
                cost_terms(measurement.schedule, measurement.nbytes, model) / measurement.seconds
                for measurement in measured
            ]
        )
        previous, (model, standard_errors) = model, _least_squares(terms)
        if np.allclose(previous, model, rtol=1e-9, atol=0):
            break
    return FittedModel(model, standard_errors)


def _least_squares(terms: np.ndarray) -> tuple[CostModel, CostModel]:
    """Return the x ≥ 0 with the smallest |terms @ x - 1|², and its standard errors. Shape: terms (n, 3).

    With three unknowns, every subset of non-zero parameters can be tried; of subsets that are about equally
    good, keep the first, which is the smallest.
    """
    scale = np.where(terms.any(axis=0), np.linalg.norm(terms, axis=0), 1)
    best, residual, chosen = np.zeros(3), float(len(terms)), []
    for columns in (list(subset) for count in (1, 2, 3) for subset in combinations(range(3), count)):
        scaled = terms[:, columns] / scale[columns]
        x, _, rank, _ = np.linalg.lstsq(scaled, np.ones(len(scaled)), rcond=None)
        new_residual = float(np.sum((scaled @ x - 1) ** 2))
        if rank == len(columns) and (x >= 0).all() and new_residual < residual * (1 - GAIN) - 1e-18:
            best, residual, chosen = np.zeros(3), new_residual, columns
            best[columns] = x / scale[columns]
    errors = np.full(3, np.nan)
    if len(terms) > len(chosen):
        deviation = np.sqrt(residual / (len(terms) - len(chosen)))
        for column in range(3):
            # The part of this parameter's terms that no combination of the others can replace.
            others = terms[:, [other for other in chosen if other != column]]
            fitted = others @ np.linalg.lstsq(others, terms[:, column], rcond=None)[0]
            distance = np.linalg.norm(terms[:, column] - fitted)
            if distance > DISTINCT * scale[column]:
                errors[column] = deviation / distance
    return CostModel(*best.tolist()), CostModel(*errors.tolist())
