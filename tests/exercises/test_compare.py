"""The comparison of a result with the expected one names what differs, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.checks.compare import difference, names_of_parts
from labkit.checks.transport import Foreign
from labkit.schedules import Transfer

A = np.arange(6.0).reshape(2, 3)
F32 = A.astype(np.float32)


def with_value(place: tuple[int, ...], value: float) -> np.ndarray:
    array = A.copy()
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (with_value((1, 2), 7.0), A, "result[1, 2] is 7, expected 5 (1 of 6 values are wrong)"),
        (with_value((0, 1), np.nan), A, "result[0, 1] is nan, expected 1"),
        (A, with_value((0, 1), np.nan), "result[0, 1] is 1, expected nan"),
        (A, F32, "has dtype float64, expected float32"),
        (A.T, A, "has shape (3, 2), expected (2, 3)"),
        (A.tolist(), A, "is a list of 2 values, expected an array of shape (2, 3), float64"),
        (None, A, "Does every path return it?"),
        (None, 1.5, "is None, expected a float"),
        ((A, A), (A, A, A), "has 2 values, expected 3"),
        ((A, A + 1), (A, A), "result[1][0, 0] is 1, expected 0"),
        ({"a": 1}, {"a": 1, "b": 2}, "has no key 'b'"),
        ({"a": 1, "c": 2}, {"a": 1}, "has the key 'c', which is not expected"),
        ({"a": A + 1}, {"a": A}, "result['a'][0, 0] is 1, expected 0"),
        (1.0, 1.5, "is 1, expected 1.5"),
        (3.0, 3, "is a float, expected an int"),
        (1, True, "is an int, expected a bool"),
        ("ring", "tree", "is 'ring', expected 'tree'"),
        ((0, 1, 2, 3, True), Transfer(0, 1, 2, 3, True), "expected a Transfer"),
        (Foreign("generator"), A, "is of type generator"),
        (A > 2, A, "result[0, 1] is False, expected 1"),
    ],
)
def test_a_difference_is_named(got: Any, expected: Any, words: str) -> None:
    assert words in (difference(got, expected, None) or "")


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (A, A),
        (A * (1 + 1e-15), A),
        (F32 * np.float32(1 + 3e-7), F32),
        ([A, 1], (A, 1)),
        (np.float64(2.0), 2.0),
        (np.int64(3), 3),
        (np.array(2.0), 2.0),
        (with_value((0, 0), np.nan), with_value((0, 0), np.nan)),
        (with_value((0, 0), -np.inf), with_value((0, 0), -np.inf)),
        (A.astype(np.int32), A.astype(np.int64)),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (None, None),
        ({"b": 2, "a": 1}, {"a": 1, "b": 2}),
    ],
)
def test_equal_results_have_no_difference(got: Any, expected: Any) -> None:
    assert difference(got, expected, None) is None


def test_the_tolerance_is_relative_to_the_largest_value() -> None:
    assert difference(A * 1.01, A, 0.02) is None
    assert difference(A * 1.01, A, 0.005)
    assert difference(A + 1e-9, A, None)
    assert difference(A + 1e-30, A, None) is None


@pytest.mark.parametrize(
    ("docstring", "count", "names"),
    [
        ("Return the gradients (dx, dw, db). Shapes: dy (N, O), x (N, I).", 3, ["dx", "dw", "db"]),
        ("Return two arrays. Shapes: dy (N, O).", 2, []),
        (None, 2, []),
    ],
)
def test_parts_have_the_names_of_the_docstring(docstring: str | None, count: int, names: list[str]) -> None:
    assert names_of_parts(docstring, count) == names
