"""What a wrong sum over the ranks is made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from labkit.checks.exercise import Case
from labkit.checks.sums import what_is_in_it

ARRAYS = [np.random.default_rng(rank).normal(size=12) for rank in range(3)]
CASE = Case("3 ranks", tuple((array, 0.5) for array in ARRAYS))
SUM = np.sum(ARRAYS, axis=0)
Result = Callable[[list[np.ndarray]], np.ndarray]


@pytest.mark.parametrize(
    ("got", "expected", "said"),
    [
        (ARRAYS[0] + ARRAYS[2], SUM, "the array of rank 1 is missing from it"),
        (ARRAYS[0], SUM, "the array of ranks 1, 2 is missing from it"),
        (SUM + ARRAYS[2], SUM, "the array of rank 2 counts 2 times"),
        (SUM / 3, SUM, "every rank's array is in it, 0.3333 times as large as it should be"),
        (SUM[4:8], SUM[0:4], "it holds what belongs to values 4 to 7 of the arrays, expected values 0 to 3"),
        (
            ARRAYS[0] / 3 + ARRAYS[1],
            SUM / 3,
            "rank 2 is missing from it; the array of rank 1 has the factor 1,",
        ),
        (SUM, SUM, ""),
        (SUM * 1.37 + 2, SUM, ""),  # no sum of them
        (SUM, SUM[:5], ""),
        (np.full(12, np.nan), SUM, ""),
    ],
)
def test_what_is_in_a_sum(got: np.ndarray, expected: np.ndarray, said: str) -> None:
    found = what_is_in_it(CASE, got, expected)
    assert said in found and bool(said) == bool(found)


def test_two_arrays_that_cannot_be_told_apart_give_no_answer() -> None:
    same = Case("2 ranks", ((SUM,), (SUM,)))
    assert what_is_in_it(same, SUM, 2 * SUM) == ""


def test_scalars_and_texts_are_no_sums() -> None:
    case = Case("2 ranks", ((1.0, "a"), (2.0, "b")))
    assert what_is_in_it(case, 3.0, 4.0) == what_is_in_it(case, "a", "b") == ""
