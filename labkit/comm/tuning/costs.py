"""Fitted costs: the time of every all-reduce algorithm as a function of the size, and the choice by them.

The α–β–γ model says why an algorithm is fast, but is off by a quarter where ranks share cores and where the
MPI library switches between protocols. So each algorithm has a cost of its own, which goes through the
medians measured at powers of 2 and is linear between them in log–log coordinates: there, both a constant
latency and a constant bandwidth are straight lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from labkit.comm.tuning.timing import Times
from labkit.units import MIB, approx_size, approx_time

LIBRARY, SHARED_MEMORY = "mpi", "shared-memory"
MARGIN = 0.04  # by how much an algorithm has to be faster than the library's own to be chosen
SMALLEST, LARGEST = 4, 64 * MIB  # the sizes between which costs are measured, in bytes
TREND_FROM, TREND_FACTOR = MIB, 2.0  # above this size, the order of the algorithms hardly changes


class Choice(NamedTuple):
    """The algorithms for gradients of one size with their predicted times (s), the chosen one first."""

    nbytes: int
    ranked: list[tuple[str, float]]
    source: str  # where the costs come from

    @property
    def name(self) -> str:
        """Return the chosen algorithm."""
        return self.ranked[0][0]

    def without(self, name: str) -> Choice:
        """Return the choice among the other algorithms."""
        return self._replace(ranked=[entry for entry in self.ranked if entry[0] != name])

    def __str__(self) -> str:
        if len(self.ranked) == 1:
            return f"auto: {self.name} ({self.source})"
        (name, seconds), (other, others_seconds) = self.ranked[:2]
        return (
            f"auto: {name} for {approx_size(self.nbytes)}, predicted {approx_time(seconds)}; "
            f"next {other}, {approx_time(others_seconds)} ({self.source})"
        )


def sizes_around(nbytes: int) -> list[int]:
    """Return the powers of 2 next to a size, or the size itself if it is one: where to measure for it."""
    size = min(max(nbytes, SMALLEST), LARGEST)
    below = 1 << (size.bit_length() - 1)
    return [below] if size == below else [below, 2 * below]


def predict(times: Times, nbytes: int) -> dict[str, float]:
    """Return the predicted time (s) of every algorithm that was measured at the sizes around `nbytes`.

    Above the largest measured size, times grow in proportion; below the smallest, they stay the same.
    """
    below = max((size for size in times if size <= nbytes), default=min(times))
    above = min((size for size in times if size >= nbytes), default=below)
    if below >= above:
        return {name: max(1.0, nbytes / below) * seconds for name, seconds in times[below].items()}
    part = math.log(nbytes / below) / math.log(above / below)
    return {
        name: times[below][name] ** (1 - part) * times[above][name] ** part
        for name in times[below]
        if name in times[above]
    }


def choose(times: Times, nbytes: int, source: str) -> Choice:
    """Return the fastest algorithm by prediction, or the library's own if none is faster by MARGIN."""
    predicted = predict(times, nbytes)
    ranked = sorted(predicted.items(), key=lambda entry: entry[1] * (1 - MARGIN * (entry[0] == LIBRARY)))
    return Choice(nbytes, ranked, source)


def worth_measuring(times: Times, size: int, names: Iterable[str]) -> list[str]:
    """Return the algorithms that can be the fastest at a size, judged by the next smaller measured size.

    Up to TREND_FROM bytes all of them can; above, those within TREND_FACTOR of the fastest one that sends
    messages. (Shared memory may be faster still, but there may be too little of it.)
    """
    smaller = [other for other in times if TREND_FROM <= other < size]
    if not smaller:
        return list(names)
    known = times[max(smaller)]
    most = TREND_FACTOR * min(seconds for name, seconds in known.items() if name != SHARED_MEMORY)
    return [name for name in names if known.get(name, math.inf) <= most]


def affordable(times: Times, size: int, seconds: float) -> int:
    """Return the size, or half of it, and so on, until one call of each algorithm takes at most `seconds`.

    No size is halved below TREND_FROM, and none if no time is known from there on.
    """
    while size > TREND_FROM and max(times, default=0) >= TREND_FROM and size not in times:
        predicted = predict(times, size)
        if sum(predicted[name] for name in worth_measuring(times, size, predicted)) <= seconds:
            break
        size //= 2
    return size
