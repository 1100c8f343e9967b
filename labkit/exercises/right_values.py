"""What a rank's result holds beside the right one, in a sentence: values only, nothing of the reference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from labkit.checks.compare import NUMBER_KINDS, ROUNDINGS, difference, names_of_parts
from labkit.checks.exercise import Exercise, Outcome
from labkit.text import counted

MOST_SHOWN = 8  # values of an array
FEW_VALUES = 4  # of an input: so many are shown
MOST_TEXT = 40  # characters of an input that is no array and no number


class ResultPart(NamedTuple):
    """One of the values that are judged; `before`: what an argument held before the call, else None."""

    name: str
    got: Any
    right: Any
    before: Any


def value_sentence(exercise: Exercise, rank: int, got: Outcome, right: Outcome, before: Sequence[Any]) -> str:
    """Return how a rank's result differs from the right one; empty if it does not."""
    for part in _parts(exercise, got, right, before):
        if difference(part.got, part.right, _tolerance(exercise, before), part.name):
            return _sentence(exercise, rank, part, before)
    return ""


def inputs_line(exercise: Exercise, arguments: Sequence[tuple[Any, ...]]) -> str:
    """Return what a function gets, in a line: its parameters by name, with what differs between the ranks.

    `arguments`: a tuple for each rank, without the communicator.
    """
    names = list(inspect.signature(exercise.reference).parameters)[exercise.on_ranks :]
    texts = [
        _by_rank(name, [_input(of_rank[number]) for of_rank in arguments])
        for number, name in enumerate(names)
        if number < len(arguments[0])
    ]
    return f"Inputs: {'; '.join(texts)}." if texts else ""


def _by_rank(name: str, texts: Sequence[str]) -> str:
    """Return a parameter and its value, once if it is the same on all ranks."""
    if len(set(texts)) == 1:
        return f"{name} = {texts[0]}" if len(texts) == 1 else f"{name} = {texts[0]} on every rank"
    shown = [f"{text} on rank {rank}" for rank, text in enumerate(texts[:MOST_SHOWN])]
    return f"{name} = {', '.join(shown)}{', …' if len(texts) > MOST_SHOWN else ''}"


def _input(value: Any) -> str:
    """Return an input in a few words: a number's value; an array's dtype, shape and few values."""
    if isinstance(value, np.ndarray):
        shape = counted(len(value), "value") if value.ndim == 1 else f"shape {value.shape}"
        values = f" {_values(value)}" if 0 < value.size <= FEW_VALUES else ""
        return f"{value.dtype}{values} ({shape})"
    if isinstance(value, (float, np.floating)):
        return f"{value:.3g}"
    if callable(value):
        return "a function"
    text = repr(value)
    if isinstance(value, (list, tuple)) and (len(text) > MOST_TEXT or "array(" in text):
        return f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= MOST_TEXT else f"{type(value).__name__}"


def _parts(exercise: Exercise, got: Outcome, right: Outcome, before: Sequence[Any]) -> Iterator[ResultPart]:
    names = list(inspect.signature(exercise.reference).parameters)[exercise.on_ranks :]
    place = exercise.result_in
    places = place if isinstance(place, tuple) else (place,)
    if exercise.many_are_right:  # the results differ, but not what the function leaves in arrays
        places = tuple(
            number for number in exercise.may_change if isinstance(right.arguments[number], np.ndarray)
        )
    for index in places:
        if index is not None:
            name = f"`{names[index]}`"
            yield ResultPart(name, got.arguments[index], right.arguments[index], before[index])
        elif isinstance(right.result, tuple) and isinstance(got.result, (tuple, list)):
            count = len(right.result)
            titles = names_of_parts(exercise.reference.__doc__, count)
            if len(got.result) != count or len(titles) != count:
                yield ResultPart("the result", got.result, right.result, None)
                continue
            for title, left, other in zip(titles, got.result, right.result, strict=True):
                yield ResultPart(f"`{title}`", left, other, None)
        elif exercise.digest is None:
            yield ResultPart("the result", got.result, right.result, None)


def _tolerance(exercise: Exercise, before: Sequence[Any]) -> float | None:
    """Return the tolerance, as the check chooses it."""
    if exercise.tolerance is not None:
        return exercise.tolerance
    dtypes = [argument.dtype for argument in before if isinstance(argument, np.ndarray)]
    coarse = [np.finfo(dtype).eps for dtype in dtypes if dtype.kind == "f" and dtype.itemsize < 8]
    return ROUNDINGS * float(max(coarse)) if coarse else None


def _sentence(exercise: Exercise, rank: int, part: ResultPart, before: Sequence[Any]) -> str:
    got, right = part.got, part.right
    are_arrays = isinstance(got, np.ndarray) and isinstance(right, np.ndarray)
    if not are_arrays or got.shape != right.shape or not _are_numbers(got, right):
        return f"Rank {rank}: {difference(got, right, _tolerance(exercise, before), part.name)}."
    wrong = _wrong(got, right, _tolerance(exercise, before))
    if not wrong.any():
        return f"Rank {rank}: {difference(got, right, _tolerance(exercise, before), part.name)}."
    unchanged = _unchanged(part, wrong)
    nans = int((np.isnan(got) & ~np.isnan(right)).sum())
    first = _first_row(wrong)
    ends = f"Rank {rank} ends with {_name(part.name, wrong, first)} = {_values(got[first])}"
    right_text = f"right is {_values(right[first])}"
    if nans:
        holds = f"{part.name} holds nan in {nans} of {counted(got.size, 'value')}"
        return f"{ends}; {right_text}: {holds}."
    if unchanged:
        return f"{ends}; {right_text}: {unchanged}."
    wrong_count = f"{int(wrong.sum())} of {counted(wrong.size, 'value')}"
    return f"{ends}; {right_text}: {wrong_count} differ{_where(wrong)}."


def _are_numbers(got: np.ndarray, right: np.ndarray) -> bool:
    return got.dtype.kind in NUMBER_KINDS and right.dtype.kind in NUMBER_KINDS


def _wrong(got: np.ndarray, right: np.ndarray, tolerance: float | None) -> np.ndarray:
    """Return where two arrays differ by more than the tolerance, relative to the largest right value."""
    if tolerance is None:
        tolerance = ROUNDINGS * float(np.finfo(right.dtype).eps) if right.dtype.kind in "fc" else 0.0
    finite = np.abs(right[np.isfinite(right)])
    largest = float(finite.max()) if finite.size else 0.0
    return ~np.isclose(got, right, rtol=0.0, atol=tolerance * largest, equal_nan=True)


def _unchanged(part: ResultPart, wrong: np.ndarray) -> str:
    """Return which wrong values are still those of before the call: "rows 1–2 of `gradients` …"."""
    if not isinstance(part.before, np.ndarray) or part.before.shape != wrong.shape:
        return ""
    if not np.array_equal(part.got[wrong], part.before[wrong], equal_nan=True):
        return ""
    if wrong.all():
        return f"{part.name} has not changed"
    what = "row" if wrong.ndim > 1 else "value"
    lines = wrong.reshape(len(wrong), -1).any(axis=1)
    numbers = _numbers(what, np.flatnonzero(lines))
    have = "has" if np.count_nonzero(lines) == 1 else "have"
    return f"{numbers} of {part.name} {have} not changed"


def _first_row(wrong: np.ndarray) -> Any:
    """Return the index of the first row with a wrong value; of an array with one axis, that of all."""
    if wrong.ndim < 2:
        return ...
    return tuple(int(number) for number in np.argwhere(wrong)[0][:-1])


def _name(name: str, wrong: np.ndarray, first: Any) -> str:
    if first is ... or wrong.ndim < 2:
        return name
    return f"row {', '.join(map(str, first))} of {name}"


def _where(wrong: np.ndarray) -> str:
    """Return which values differ, of an array with one axis: ", values 3–5"."""
    if wrong.ndim != 1 or wrong.all():
        return ""
    return f", {_numbers('value', np.flatnonzero(wrong))}"


def _numbers(what: str, numbers: np.ndarray) -> str:
    """Return "value 3", "values 3–5" or "values 3, 5, …"."""
    first, last = int(numbers[0]), int(numbers[-1])
    if len(numbers) == 1:
        return f"{what} {first}"
    if last - first + 1 == len(numbers):
        return f"{what}s {first}–{last}"
    shown = ", ".join(map(str, numbers[:MOST_SHOWN]))
    return f"{what}s {shown}{', …' if len(numbers) > MOST_SHOWN else ''}"


def _values(array: Any) -> str:
    """Return the first values of an array: "[5.5, 5.5, …]"."""
    flat = np.asarray(array).ravel()
    shown = [f"{value:.6g}" if flat.dtype.kind == "f" else str(value) for value in flat[:MOST_SHOWN]]
    if flat.size > MOST_SHOWN:
        shown.append("…")
    return f"[{', '.join(shown)}]"
