"""Rows of ratios, from measurements that take turns.

A machine is slower at some times than at others: other programs run on it, and it heats up. Functions
measured in turn, round after round, are affected alike; functions measured one after the other are not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Row:
    """One comparison: `ours` and `theirs` are medians over the rounds, in `unit`; ratio = ours / theirs."""

    case: str
    ours: float
    against: str
    theirs: float
    unit: str
    ratio: float


def in_turns(
    names: Iterable[str], rounds: int, measure: Callable[[str], Measured], warm_up: int = 2
) -> dict[str, list[Measured]]:
    """Return what `measure(name)` returns in each round; all take a turn in a round, in changing order."""
    found: dict[str, list[Measured]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        for name in found if number % 2 else reversed(found):
            measured = measure(name)
            if number >= 0:
                found[name].append(measured)
    return found


def interleaved(
    functions: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2
) -> dict[str, float]:
    """Return each function's median time (ms), of calls that take turns."""

    def measure(name: str) -> float:
        start = perf_counter()
        functions[name]()
        return 1e3 * (perf_counter() - start)

    times = in_turns(functions, rounds, measure, warm_up)
    return {name: statistics.median(measured) for name, measured in times.items()}


def rows_of(case: str, medians: Mapping[str, float], unit: str) -> list[Row]:
    """Return rows that compare the first of the medians with each of the others."""
    (_, ours), *others = medians.items()
    return [Row(case, ours, against, theirs, unit, ours / theirs) for against, theirs in others]


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text in aligned columns."""
    width = max([len(row.case) for row in rows], default=4)
    against = max([len(row.against) for row in rows], default=7)
    lines = [f"{'case':{width}}  {'ours':>9}  {'against':{against}}  {'theirs':>9}  unit  ratio"]
    lines += [
        f"{row.case:{width}}  {row.ours:9.2f}  {row.against:{against}}  {row.theirs:9.2f}  {row.unit:4}  "
        f"{row.ratio:5.2f}"
        for row in rows
    ]
    return "\n".join(lines)
