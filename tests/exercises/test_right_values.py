"""The sentence that says how a result differs from the right one."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.checks.exercise import Outcome
from labkit.exercises import catalogue
from labkit.exercises.right_values import value_sentence


def said(name: str, got: Outcome, right: Outcome, before: list[Any]) -> str:
    return value_sentence(catalogue.find(name), 0, got, right, before)


def tree(got: list[float], right: list[float], before: list[float]) -> str:
    """Return the sentence for the array that average_by_tree leaves in its first argument."""
    arrays = [np.array(values) for values in (got, right, before)]
    outcomes = [Outcome(None, (array, 0.5)) for array in arrays[:2]]
    return said("average_by_tree", *outcomes, [arrays[2], 0.5])


def test_a_right_result_has_no_sentence() -> None:
    assert tree([7.0, 7.0], [7.0, 7.0 + 1e-14], [1.0, 1.0]) == ""


def test_a_wrong_result_in_an_argument() -> None:
    assert tree([5.5] * 3, [7.0] * 3, [1.0] * 3) == (
        "Rank 0 ends with `gradient` = [5.5, 5.5, 5.5]; right is [7, 7, 7]: 3 of 3 values differ."
    )
    assert tree([7.0, 7.0, 5.0], [7.0] * 3, [1.0] * 3).endswith("1 of 3 values differ, value 2.")


def test_nan_is_named() -> None:
    assert "holds nan in 2 of 2 values" in tree([np.nan] * 2, [7.0] * 2, [1.0] * 2)


def test_what_has_not_changed() -> None:
    assert tree([1.0] * 2, [7.0] * 2, [1.0] * 2).endswith("`gradient` has not changed.")
    assert tree([7.0, 1.0], [7.0] * 2, [1.0] * 2).endswith("value 1 of `gradient` has not changed.")
    before, right = np.ones((3, 2)), np.full((3, 2), 7.0)
    got = before.copy()
    got[0] = 7.0
    text = said("average_by_gather", Outcome(None, (got, 0)), Outcome(None, (right, 0)), [before, 0])
    assert text.startswith("Rank 0 ends with row 1 of `gradients` = [1, 1]; right is [7, 7]")
    assert text.endswith("rows 1–2 of `gradients` have not changed.")


def test_a_result_that_is_returned() -> None:
    array = np.zeros(2)
    text = said("shift_right", Outcome(None, (array,)), Outcome(np.ones(2), (array,)), [array])
    assert "Does every path return it?" in text


def test_arrays_of_an_exercise_with_many_right_results() -> None:
    grads, right = np.array([2.0, 1.0]), np.array([2.0, 2.0])
    outcomes = [Outcome(None, (len, array, [])) for array in (grads, right)]
    text = said("average_overlapped", *outcomes, [len, np.zeros(2), []])
    assert "1 of 2 values differ, value 1" in text
