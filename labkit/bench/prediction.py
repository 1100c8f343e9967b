"""Check the cost model: fit it to some of the measured sizes and predict the others.

Each schedule is fitted with parameters of its own: if ranks share cores and memory, as on one machine, the
cost of a byte depends on how many ranks are busy in that round. One cost model fitted to all schedules
together predicts a schedule that was not measured, but less accurately; both are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.bench.rows import Row
from labkit.comm.timing import ITEM, Times
from labkit.schedules import ALLREDUCE, FittedModel, Measurement, fit_cost_model
from labkit.units import KIB, format_size

SMALLEST = 64 * KIB  # smaller sizes are not compared with the target
TARGET = 25.0  # %, of the median error
POINTS = 100  # on a curve


def held_out(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return every other size, starting with the second largest and without the smallest, ascending."""
    return tuple(sorted(sorted(sizes)[-2:0:-2]))


@dataclass(frozen=True)
class Prediction:
    """Cost models fitted without the sizes `held_out`, and the times (s) that they predict."""

    p: int
    fits: dict[str, FittedModel]
    together: FittedModel
    held_out: tuple[int, ...]
    predicted: Times

    def curves(self) -> tuple[list[int], dict[str, list[float]]]:
        """Return closely spaced sizes over the measured range, and each schedule's predicted times (s)."""
        ends = np.geomspace(min(self.predicted), max(self.predicted), POINTS)
        sizes = np.unique(ends.astype(int) // ITEM * ITEM).tolist()
        schedules = {name: make(self.p) for name, make in ALLREDUCE.items()}
        return sizes, {
            name: [self.fits[name].predict(schedule, size) for size in sizes]
            for name, schedule in schedules.items()
        }

    def __str__(self) -> str:
        width = max(map(len, self.fits))
        lines = [f"{name:{width}}  {', '.join(str(fit).splitlines())}" for name, fit in self.fits.items()]
        return "\n".join([*lines, f"{'all':{width}}  {', '.join(str(self.together).splitlines())}"])


def predict(times: Times, p: int) -> Prediction | None:
    """Fit cost models to the schedules' times and predict the held-out sizes.

    Return None if there is nothing to predict: with one rank, or with fewer than three sizes.
    """
    held = held_out(list(times))
    if p == 1 or not held:
        return None
    schedules = {name: make(p) for name, make in ALLREDUCE.items()}
    seen = {
        name: [Measurement(schedule, size, times[size][name]) for size in times if size not in held]
        for name, schedule in schedules.items()
    }
    fits = {name: fit_cost_model(measured) for name, measured in seen.items()}
    predicted = {
        size: {name: fits[name].predict(schedule, size) for name, schedule in schedules.items()}
        for size in times
    }
    together = fit_cost_model(point for measured in seen.values() for point in measured)
    return Prediction(p, fits, together, held, predicted)


def rows(times: Times, prediction: Prediction, place: str) -> list[Row]:
    """Return rows of measured against predicted times at the held-out sizes, and of the median error (%)."""
    found, errors = [], []
    for size in prediction.held_out:
        if size < SMALLEST:
            continue
        for name, predicted in prediction.predicted[size].items():
            measured = times[size][name]
            found.append(
                Row(
                    f"model/{name}/{format_size(size)}/{place}",
                    1e3 * measured,
                    "predicted",
                    1e3 * predicted,
                    "ms",
                    measured / predicted,
                )
            )
            errors.append(100 * abs(predicted / measured - 1))
    if errors:
        median = statistics.median(errors)
        found.append(Row(f"model/median/{place}", median, "target", TARGET, "%", median / TARGET))
    return found
