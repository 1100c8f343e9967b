"""Of which ranks' arrays a wrong sum is made: found by solving for the factor of each rank's array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.checks.exercise import Case
from labkit.text import counted, ranks_phrase

MOST_PLACES = 2000  # at which a part of the arrays is looked for
MOST_PARTS = 3  # of a sum, in a message
EXACT = 1e-4  # relative to the largest value: results in float32 have seven digits


def what_is_in_it(case: Case, got: Any, expected: Any) -> str:
    """Return which ranks' arrays are missing from a sum, or count more than once; empty if it is none.

    The expected result is a weighted sum of one array of each rank, or of the same part of it, and so is the
    result that the student's function returned. `got`, `expected`: arrays of the same shape.
    """
    for number in range(len(case.arguments[0])):
        arrays = [mine[number] for mine in case.arguments]
        if not _may_be_added(arrays, expected) or not _may_be_added(arrays, got):
            continue
        right = _factors(arrays, expected, range(len(arrays[0]) - len(expected) + 1))
        if right is None:
            continue
        at, factors = right
        others = [place for place in range(len(arrays[0]) - len(got) + 1) if place != at]
        factors_of = _factors(arrays, got, [at, *others[:MOST_PLACES]]) if len(got) == len(expected) else None
        if factors_of is None:
            continue
        return _described(at, factors, *factors_of, len(expected))
    return ""


def _may_be_added(arrays: Sequence[Any], result: Any) -> bool:
    """Tell whether a result can be a sum of these arrays, or of parts of them along the first axis."""
    are_arrays = all(isinstance(array, np.ndarray) and array.ndim for array in [*arrays, result])
    if (
        not are_arrays
        or len({array.shape for array in arrays}) > 1
        or result.shape[1:] != arrays[0].shape[1:]
    ):
        return False
    numbers = all(array.dtype.kind in "iuf" and np.isfinite(array).all() for array in [*arrays, result])
    return numbers and len(arrays) > 1 and len(arrays[0]) >= len(result) and result.size > len(arrays)


def _factors(
    arrays: Sequence[np.ndarray], result: np.ndarray, places: Sequence[int]
) -> tuple[int, np.ndarray] | None:
    """Return the first place at which a part of the arrays adds up to the result, and each array's factor."""
    goal = result.ravel().astype(float)
    for place in places:
        part = [array[place : place + len(result)].ravel().astype(float) for array in arrays]
        terms = np.stack(part, axis=1)
        factors, _, rank, _ = np.linalg.lstsq(terms, goal, rcond=1e-9)
        if rank == len(arrays) and np.abs(terms @ factors - goal).max() <= EXACT * np.abs(terms).max():
            return place, factors
    return None


def _described(at: int, right: np.ndarray, place: int, got: np.ndarray, length: int) -> str:
    if place != at:
        where = f"it holds what belongs to values {place} to {place + length - 1} of the arrays"
        return f"{where}, expected values {at} to {at + length - 1}"
    near = EXACT * np.abs(right).max()
    missing = [rank for rank in range(len(right)) if abs(got[rank]) <= near < abs(right[rank])]
    wrong = [rank for rank in range(len(right)) if abs(got[rank] - right[rank]) > 10 * near]
    if not wrong:
        return ""
    parts = [f"the array of {ranks_phrase(missing)} is missing from it"] if missing else []
    ratios = got / np.where(np.abs(right) > near, right, np.inf)
    if len(wrong) == len(right) and np.ptp(ratios) < 1e-3 and _is_plain(ratios[0], right[0], len(right)):
        return f"every rank's array is in it, {ratios[0]:.4g} times as large as it should be"
    for rank in wrong:
        if rank in missing:
            continue
        if not _is_plain(ratios[rank], right[rank], len(right)):
            return ""  # no sum of the ranks' arrays, though it can be written as one
        if abs(right[rank] - 1) <= near:
            parts.append(f"the array of rank {rank} counts {counted(round(got[rank]), 'time')}")
        else:
            parts.append(
                f"the array of rank {rank} has the factor {got[rank]:.4g}, expected {right[rank]:.4g}"
            )
    return "; ".join(parts[:MOST_PARTS])


def _is_plain(ratio: float, factor: float, p: int) -> bool:
    """Tell whether a factor is wrong as in a sum: counted several times, divided, or weighted twice."""
    whole = [*range(2, 2 * p + 1), *(1 / k for k in range(2, 2 * p + 1)), factor]
    return any(abs(ratio - multiple) < 1e-3 * multiple for multiple in whole if multiple)
