"""When the gradient is complete, and how it is cut into buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from labkit.exercises.exercise import Case, Exercise, Outcome

Suspect = Callable[[Case], Sequence[Any]]


def on(function: Callable[..., Any]) -> Suspect:
    """Return the suspect whose result is that of `function` on a case's arguments."""
    return lambda case: [function(*arguments) for arguments in case.arguments]


def completed(sizes, seconds):  # type: ignore[no-untyped-def]
    """Return pairs (start, t): t seconds after the backward pass began, grads[start:] is complete.

    `sizes` and `seconds` hold each layer's number of parameters and the time of its backward pass (s), the
    first layer first. The pairs are in the order of the backward pass. A layer without parameters has no
    pair, but takes time.
    """
    start, t, pairs = sum(sizes), 0.0, []
    for size, layer_s in zip(reversed(sizes), reversed(seconds)):  # noqa: B905 (a student's Python)
        start -= size
        t += layer_s
        if size > 0:
            pairs.append((start, t))
    return pairs


def _completed_cases() -> Sequence[Case]:
    layers: dict[str, tuple[list[int], list[float]]] = {
        "1 layer": ([6], [0.5]),
        "2 layers": ([2, 5], [0.25, 0.5]),
        "3 layers, the second without parameters": ([4, 0, 3], [1.0, 0.5, 0.25]),
        "5 layers, the first and last without parameters": ([0, 7, 2, 9, 0], [0.5, 1.0, 2.0, 4.0, 8.0]),
        "no layers": ([], []),
    }
    return [Case(label, (arguments,)) for label, arguments in layers.items()]


def _expected_completed(case: Case) -> Sequence[Any]:
    ((sizes, seconds),) = case.arguments
    return [
        [
            (sum(sizes[:layer]), sum(seconds[layer:]))
            for layer in range(len(sizes) - 1, -1, -1)
            if sizes[layer] > 0
        ]
    ]


def _forward_order(sizes: list[int], seconds: list[float]) -> list[tuple[int, float]]:
    return [
        (sum(sizes[:layer]), sum(seconds[: layer + 1])) for layer in range(len(sizes)) if sizes[layer] > 0
    ]


def _pairs_where(
    sizes: list[int],
    seconds: list[float],
    start: Callable[[int], float],
    t: Callable[[int], float],
    every: bool = False,
) -> list[tuple[float, float]]:
    """Return the pairs that `start` and `t` make of the layers' numbers."""
    return [(start(k), t(k)) for k in range(len(sizes) - 1, -1, -1) if every or sizes[k] > 0]


def bucket_plan(n, bucket_bytes, small_bytes):  # type: ignore[no-untyped-def]
    """Return the buckets of n float32 values as pairs (start, stop), the bucket at the end first."""
    most = max(1, bucket_bytes // 4)
    small = min(most, max(1, small_bytes // 4))
    plan, stop = [], n
    while stop > 0:
        values = small if stop == n or stop <= small else min(most, stop - small)
        start = max(0, stop - values)
        plan.append((start, stop))
        stop = start
    return plan


def _plan_cases() -> Sequence[Case]:
    sizes = (
        *((1, 4, 4), (11, 16, 8), (17, 16, 8), (3, 16, 8), (12, 8, 8), (5, 16, 8), (0, 8, 8)),
        *((20, 8, 16), (50, 15, 7), (5, 3, 1), (100, 132, 40), (286794, 98304, 16384)),
    )
    return [Case(f"n={n}, buckets of {b} bytes, small ones of {s}", ((n, b, s),)) for n, b, s in sizes]


def _cut(stops: Sequence[int]) -> list[tuple[int, int]]:
    return [(start, stop) for stop, start in pairwise(stops)]


def _plan(n: int, sizes: Callable[[int, int], int], first: int) -> list[tuple[int, int]]:
    """Return a plan whose first bucket has `first` values; `sizes(left, number)` gives the next one's."""
    stops, number = [n], 0
    while stops[-1] > 0:
        values = first if number == 0 else sizes(stops[-1], number)
        stops.append(max(0, stops[-1] - max(1, values)))
        number += 1
    return _cut(stops)


def _values(bucket_bytes: int, small_bytes: int, itemsize: int = 4) -> tuple[int, int]:
    most = max(1, bucket_bytes // itemsize)
    return most, min(most, max(1, small_bytes // itemsize))


def _equal_buckets(n: int, bucket_bytes: int, small_bytes: int) -> list[tuple[int, int]]:
    most, _ = _values(bucket_bytes, small_bytes)
    return _plan(n, lambda left, number: most, most)


def _large_last(n: int, bucket_bytes: int, small_bytes: int) -> list[tuple[int, int]]:
    most, small = _values(bucket_bytes, small_bytes)
    return _plan(n, lambda left, number: most, small)


def _large_first(n: int, bucket_bytes: int, small_bytes: int) -> list[tuple[int, int]]:
    most, small = _values(bucket_bytes, small_bytes)
    return _plan(
        n,
        lambda left, number: left if left <= small else min(most, left - small),
        n if n <= small else min(most, n - small),
    )


def _in_values(n: int, bucket_bytes: int, small_bytes: int) -> list[tuple[int, int]]:
    return bucket_plan(n, 4 * bucket_bytes, 4 * small_bytes)


def _float64(n: int, bucket_bytes: int, small_bytes: int) -> list[tuple[int, int]]:
    return bucket_plan(n, bucket_bytes // 2, small_bytes // 2)


def _from_the_start(n: int, bucket_bytes: int, small_bytes: int) -> list[tuple[int, int]]:
    return bucket_plan(n, bucket_bytes, small_bytes)[::-1]


def _mirrored(n: int, bucket_bytes: int, small_bytes: int) -> list[tuple[int, int]]:
    return [(n - stop, n - start) for start, stop in bucket_plan(n, bucket_bytes, small_bytes)]


def _small_not_capped(n: int, bucket_bytes: int, small_bytes: int) -> list[tuple[int, int]]:
    most, small = max(1, bucket_bytes // 4), max(1, small_bytes // 4)
    return _plan(n, lambda left, number: left if left <= small else min(most, left - small), small)


def _look_at_plan(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    """Return the first fault of a plan, from its buckets' bounds to their sizes."""
    (arguments,), plan = case.arguments, outcomes[0].result
    n = arguments[0]
    if not isinstance(plan, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in plan):
        return f"expected a list of pairs (start, stop), got {plan!r:.80}"
    for mistake, suspect in _PLAN_SUSPECTS.items():
        wrong = suspect(*arguments)
        if plan == wrong and wrong != _expected_plan(case):
            return mistake
    stop = n
    for number, (start, end) in enumerate(plan, 1):
        if not 0 <= start < end or end != stop:
            fault = (
                f"values {end} to {stop - 1} are in no bucket" if end < stop else "expected 0 <= start < stop"
            )
            fault = f"it overlaps the bucket before it; expected stop={stop}" if end > stop else fault
            return f"bucket {number} of {len(plan)} is ({start}, {end}): {fault}"
        stop = start
    if stop > 0:
        return f"values 0 to {stop - 1} are in no bucket"
    sizes, right = ([stop - start for start, stop in pairs] for pairs in (plan, _expected_plan(case)))
    return None if sizes == right else f"the buckets have {_short(sizes)} values, expected {_short(right)}"


def _short(sizes: Sequence[int]) -> str:
    return str(list(sizes)) if len(sizes) < 9 else f"{sizes[:7]} and {len(sizes) - 7} more"


def _expected_plan(case: Case) -> list[tuple[int, int]]:
    from labkit.train.buckets import Buckets  # noqa: PLC0415 (loads MPI, which a notebook's kernel must not)

    ((n, bucket_bytes, small_bytes),) = case.arguments
    return list(Buckets(bytes=bucket_bytes, first_bytes=small_bytes).plan(n).bounds)


_PLAN_SUSPECTS = {
    "the plan begins at the start of the gradient. The backward pass completes its end first": _mirrored,
    "the buckets are in the wrong order: the one at the end of the gradient comes first": _from_the_start,
    "all buckets have the same size. The first and the last one have `small_bytes`": _equal_buckets,
    "the last bucket is not small: what is left over goes into the bucket before it": _large_last,
    "the first bucket is not small, so the link gets its first work late": _large_first,
    "the sizes are in bytes, and a value has 4 of them: these buckets are 4 times too large": _in_values,
    "a float32 value has 4 bytes: these buckets are cut for values of 8 bytes": _float64,
    "no bucket may have more than `bucket_bytes`, not even if `small_bytes` is larger": _small_not_capped,
}


EXERCISES = [
    Exercise(
        reference=completed,
        title="When is the gradient complete?",
        difficulty=2,
        minutes=10,
        cases=_completed_cases,
        expected=_expected_completed,
        suspects={
            "the pairs are in the order of the forward pass; the backward pass begins at the end": on(
                _forward_order
            ),
            "`start` is where the layer ends. Complete from there on is what came before this layer": on(
                lambda n, s: _pairs_where(n, s, lambda k: sum(n[: k + 1]), lambda k: sum(s[k:]))
            ),
            "t is the time of one layer. Count from the beginning of the backward pass": on(
                lambda n, s: _pairs_where(n, s, lambda k: sum(n[:k]), lambda k: s[k])
            ),
            "t leaves out the time of the layers without parameters": on(
                lambda n, s: _pairs_where(
                    n, s, lambda k: sum(n[:k]), lambda k: sum(s[i] for i in range(k, len(n)) if n[i])
                )
            ),
            "a layer without parameters completes nothing: no pair for it": on(
                lambda n, s: _pairs_where(n, s, lambda k: sum(n[:k]), lambda k: sum(s[k:]), every=True)
            ),
            "t is when the layer begins. Its gradient is complete when it ends": on(
                lambda n, s: _pairs_where(n, s, lambda k: sum(n[:k]), lambda k: sum(s[k + 1 :]))
            ),
        },
        hints=(
            "Go through both lists from their ends. Keep two running numbers: how far the gradient is "
            "complete, and how much time has passed.",
            "Begin with start = sum(sizes) and t = 0. Each layer subtracts its size and adds its seconds; "
            "append the pair only if the layer has parameters.",
        ),
    ),
    Exercise(
        reference=bucket_plan,
        title="The bucket plan",
        difficulty=3,
        minutes=15,
        cases=_plan_cases,
        expected=None,
        suspects={},
        look=_look_at_plan,
        hints=(
            "Walk from n down to 0. Each turn decides one thing: how many values the next bucket has.",
            "The first bucket has `small` values. So has the last one: as long as more than `small` values "
            "are left, take at most `left - small`, and at most a whole bucket.",
            "`values = small if stop == n or stop <= small else min(most, stop - small)`",
        ),
    ),
]
