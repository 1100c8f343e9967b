"""Does the model hold? Rates fitted to some of the measured sizes, and the others predicted with them.

One α, one β and one γ for all schedules: with rates of its own for each, a schedule's price would say nothing
about another schedule, which is what the model is for.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.bench.collectives import ITEM, Times, said
from labkit.bench.rows import Row
from labkit.schedules import ALLREDUCE
from labkit.schedules.fit import Fit, Measurement, fit

FROM = 64 << 10  # bytes: where the prediction is held to the target
TARGET = 25.0  # %
POINTS = 100  # of a curve


def held_out(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return every other size, but for the largest and, as far as that goes, the smallest."""
    return tuple(sorted(sorted(sizes)[-2:0:-2]))


@dataclass(frozen=True)
class Modelled:
    """The fitted rates, and what they predict: of the sizes `held_out` they have seen nothing."""

    p: int
    fit: Fit
    held_out: tuple[int, ...]
    predicted: Times

    def curves(self) -> tuple[list[int], dict[str, list[float]]]:
        """Return sizes from the least to the largest, closely, and every schedule's predicted times (s)."""
        ends = np.geomspace(min(self.predicted), max(self.predicted), POINTS)
        sizes = np.unique(ends.astype(int) // ITEM * ITEM).tolist()
        schedules = {name: make(self.p) for name, make in ALLREDUCE.items()}
        return sizes, {
            name: [self.fit.predict(schedule, size) for size in sizes] for name, schedule in schedules.items()
        }


def modelled(times: Times, p: int) -> Modelled | None:
    """Fit the rates to the schedules' times; None where there is nothing to predict: one rank, two sizes."""
    held = held_out(list(times))
    if p == 1 or not held:
        return None
    schedules = {name: make(p) for name, make in ALLREDUCE.items()}
    seen = [
        Measurement(schedules[name], size, medians[name])
        for size, medians in times.items()
        if size not in held
        for name in schedules
    ]
    found = fit(seen)
    predicted = {
        size: {name: found.predict(schedule, size) for name, schedule in schedules.items()} for size in times
    }
    return Modelled(p, found, held, predicted)


def rows(times: Times, model: Modelled, place: str) -> list[Row]:
    """Return the times at the held-out sizes against those predicted, and the median error (%) of these."""
    found, errors = [], []
    for size in model.held_out:
        if size < FROM:
            continue
        for name, predicted in model.predicted[size].items():
            measured = times[size][name]
            found.append(
                Row(
                    f"model/{name}/{said(size)}/{place}",
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
