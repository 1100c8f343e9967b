"""How much communication computation does not hide."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from labkit.exercises.catalogue.nb07.buckets import on
from labkit.exercises.exercise import Case, Exercise


def exposed_seconds(computing, transfers):  # type: ignore[no-untyped-def]
    """Return for how many seconds the link carried data while the rank computed nothing.

    Both arguments are lists of spans (begin, end) in seconds on one clock, in any order. The spans of one
    list do not overlap each other.
    """
    total = sum(end - begin for begin, end in transfers)
    hidden = 0.0
    for begin, end in transfers:
        for from_s, to_s in computing:
            hidden += max(0.0, min(end, to_s) - max(begin, from_s))
    return total - hidden


def _exposed_cases() -> Sequence[Case]:
    spans: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {
        "one transfer after the computation": ([(0.0, 4.0)], [(4.0, 7.0)]),
        "one transfer, half of it hidden": ([(0.0, 4.0)], [(3.0, 5.0)]),
        "the rank waits for 2 s before the transfer": ([(0.0, 2.0), (2.0, 4.0)], [(6.0, 9.0)]),
        "two transfers, the first one hidden": ([(0.0, 2.0), (2.0, 6.0)], [(3.0, 4.0), (5.0, 8.0)]),
        "a transfer that spans a pause between two layers": (
            [(0.0, 2.0), (5.0, 6.0)],
            [(1.0, 7.0), (8.0, 10.0)],
        ),
        "spans that are not in order": ([(8.0, 9.0), (0.0, 4.0)], [(8.0, 12.0), (3.0, 5.0), (6.0, 7.0)]),
        "all of it hidden": ([(0.0, 10.0)], [(1.0, 2.0), (4.0, 8.0)]),
        "no transfer": ([(0.0, 1.0)], []),
    }
    return [Case(label, (arguments,)) for label, arguments in spans.items()]


Spans = list[tuple[float, float]]


def _expected_exposed(case: Case) -> Sequence[Any]:
    """Walk along all bounds: between two of them, nothing begins or ends."""
    ((computing, transfers),) = case.arguments
    exposed = 0.0
    for begin, end in pairwise(sorted({time for span in computing + transfers for time in span})):
        middle = (begin + end) / 2
        carries, computes = (any(a < middle < b for a, b in spans) for spans in (transfers, computing))
        exposed += (end - begin) * (carries and not computes)
    return [exposed]


def _total(computing: Spans, transfers: Spans) -> float:
    return sum(end - begin for begin, end in transfers)


def _unclamped(computing: Spans, transfers: Spans) -> float:
    pairs = [(a, b, c, d) for a, b in transfers for c, d in computing]
    return _total(computing, transfers) - sum(min(b, d) - max(a, c) for a, b, c, d in pairs)


def _after_the_end(computing: Spans, transfers: Spans) -> float:
    end = max(stop for _, stop in computing)
    return max([0.0, *(stop - end for _, stop in transfers)])


def _one_block(computing: Spans, transfers: Spans) -> float:
    block = min(begin for begin, _ in computing), max(end for _, end in computing)
    return float(exposed_seconds([block], transfers))


def _late_begin(computing: Spans, transfers: Spans) -> float:
    end = max(stop for _, stop in computing)
    return sum(stop - begin for begin, stop in transfers if begin >= end)


EXERCISES = [
    Exercise(
        reference=exposed_seconds,
        title="Exposed communication",
        difficulty=2,
        minutes=10,
        cases=_exposed_cases,
        expected=_expected_exposed,
        suspects={
            "this is the hidden time. Exposed is the rest of the transfers' time": on(
                lambda c, t: _total(c, t) - exposed_seconds(c, t)
            ),
            "this is the time of all transfers. Subtract the part that computation hides": on(_total),
            "spans that do not meet count as a negative overlap: an overlap is at least 0": on(_unclamped),
            "this counts from the end of the computation, with the time in which the link is idle": on(
                _after_the_end
            ),
            "the rank does not compute between two spans: a transfer is exposed there, too": on(_one_block),
            "a transfer that begins before the computation ends can be exposed in part": on(_late_begin),
        },
        hints=(
            "Exposed = the time of all transfers minus the time that computation hides.",
            "Spans (a, b) and (c, d) overlap for min(b, d) - max(a, c) seconds, or not at all if that is "
            "negative. Add it up over all pairs of a transfer and a computing span.",
        ),
    ),
]
