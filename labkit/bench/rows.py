"""Rows of ratios, from measurements that take turns.

A machine is slower at some times than at others: other programs run on it, and it heats up. Functions
measured in turn, round after round, are affected alike; functions measured one after the other are not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    by_name: dict[str, list[Measured]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        for name in by_name if number % 2 else reversed(by_name):
            measured = measure(name)
            if number >= 0:
                by_name[name].append(measured)
    return by_name


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
    lines = [("case", "ours", "against", "theirs", "unit", "ratio")]
    for row in rows:
        ours, theirs, ratio = (f"{value:.2f}" for value in (row.ours, row.theirs, row.ratio))
        lines.append((row.case, ours, row.against, theirs, row.unit, ratio))
    return aligned(lines, ends={1, 3, 5})


def aligned(lines: Sequence[Sequence[str]], ends: Collection[int] = ()) -> str:
    """Return lines of cells as text in columns; in those numbered in `ends`, the cells end together."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number in ends else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
