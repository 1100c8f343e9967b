"""Does the model hold? CostModel fitted to some of the measured sizes, and the others predicted with them.

Each schedule has rates of its own: where ranks share cores and memory, as on one machine, what a byte costs
depends on who else is at work in that round. One cost model fitted to all schedules together predicts
one that was not measured, and less well; both are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.bench.collectives import ITEM, Times
from labkit.bench.rows import Row
from labkit.schedules import ALLREDUCE, FittedModel, Measurement, fit_cost_model
from labkit.units import format_size

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
    fits: dict[str, FittedModel]
    together: FittedModel
    held_out: tuple[int, ...]
    predicted: Times

    def curves(self) -> tuple[list[int], dict[str, list[float]]]:
        """Return sizes from the least to the largest, closely, and every schedule's predicted times (s)."""
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


def modelled(times: Times, p: int) -> Modelled | None:
    """Fit the rates to the schedules' times; None where there is nothing to predict: one rank, two sizes."""
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
    together = fit_cost_model(one for measured in seen.values() for one in measured)
    return Modelled(p, fits, together, held, predicted)


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
