"""Whose contributions an array holds, if those of rank r are values 10^r: the digits of a sum say it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from labkit.text import ranks_phrase
from mpiwatch.trace import Values

MOST_PARTS = 4  # of an array that are told apart


def origin_of(value: object, size: int) -> tuple[int, ...] | None:
    """Return how often each rank's contribution is in a value; None if the value is no sum of them."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 10**size:
        return None
    if value != int(value):
        return None
    return tuple(int(digit) for digit in reversed(str(int(value)).zfill(size)))


def origin_text(values: Values, size: int) -> str:
    """Return whose contributions the first values of an array hold: "of rank 0, then of ranks 0, 2".

    The text is empty if a value is no sum of contributions.
    """
    origins = [origin_of(value, size) for value in values.first]
    if not origins or any(origin is None for origin in origins):
        return ""
    parts = [_of(origin) for origin, _ in groupby(origins) if origin is not None]
    if len(parts) > MOST_PARTS:
        parts = [*parts[:MOST_PARTS], "…"]
    return ", then ".join(parts)


def _of(counts: Sequence[int]) -> str:
    """Return a value's contributions as text: "of ranks 0, 2 (rank 2 twice)"."""
    ranks = [rank for rank, count in enumerate(counts) if count]
    again = [f"rank {rank} {times(counts[rank])}" for rank in ranks if counts[rank] > 1]
    text = f"of {ranks_phrase(ranks)}"
    return f"{text} ({', '.join(again)})" if again else text


def times(count: int) -> str:
    """Return how often something is there: twice, 3 times."""
    return "twice" if count == 2 else f"{count} times"
