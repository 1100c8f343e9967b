"""The pairs of operations: values worked out by hand, and every gradient against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.nn import numerical_gradient, ops, relative_error

RNG = np.random.default_rng(11)


def test_linear_by_hand() -> None:
    x, w, b = np.array([[1.0, 2.0]]), np.array([[3.0], [5.0]]), np.array([7.0])
    assert ops.linear(x, w, b).tolist() == [[20.0]]
    dx, dw, db = ops.linear_backward(np.array([[2.0]]), x, w)
    assert dx.tolist() == [[6.0, 10.0]] and dw.tolist() == [[2.0], [4.0]] and db.tolist() == [2.0]


def test_linear_backward_is_the_gradient() -> None:
    x, w, b = RNG.normal(size=(5, 4)), RNG.normal(size=(4, 3)), RNG.normal(size=3)
    dy = RNG.normal(size=(5, 3))
    for by_hand, array in zip(ops.linear_backward(dy, x, w), (x, w, b), strict=True):
        differences = numerical_gradient(lambda: float((dy * ops.linear(x, w, b)).sum()), array)
        assert relative_error(by_hand, differences).max() < 1e-8


def test_mean_squared_error_by_hand_and_its_gradient() -> None:
    assert ops.mean_squared_error(np.array([[1.0], [4.0]]), np.array([[3.0], [4.0]])) == 2.0
    pred, target = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 2))
    differences = numerical_gradient(lambda: ops.mean_squared_error(pred, target), pred)
    assert relative_error(ops.mean_squared_error_backward(pred, target), differences).max() < 1e-8


def test_cross_entropy_by_hand_and_its_gradient() -> None:
    even = np.zeros((3, 4))
    assert ops.softmax_cross_entropy(even, np.array([0, 1, 3])) == pytest.approx(np.log(4))
    logits, labels = RNG.normal(size=(6, 4)), RNG.integers(0, 4, 6)
    differences = numerical_gradient(lambda: ops.softmax_cross_entropy(logits, labels), logits)
    assert relative_error(ops.softmax_cross_entropy_backward(logits, labels), differences).max() < 1e-8


def test_softmax_is_stable_row_by_row() -> None:
    """A row far below another would be lost if the maximum were that of the whole array."""
    logits = np.array([[1e4, 1e4 - 1], [-1e4, -1e4 - 1]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        rows = ops.log_softmax(logits)
        loss = ops.softmax_cross_entropy(logits, np.array([0, 0]))
    np.testing.assert_allclose(rows[0], rows[1])
    assert loss == pytest.approx(np.log(1 + np.exp(-1)), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_stays(dtype: type[np.floating]) -> None:
    x, w, b = np.ones((2, 3), dtype), np.ones((3, 4), dtype), np.ones(4, dtype)
    out = ops.linear(x, w, b)
    arrays = [
        out,
        *ops.linear_backward(out, x, w),
        ops.mean_squared_error_backward(out, out),
        ops.softmax_cross_entropy_backward(out, np.array([0, 3])),
    ]
    assert {array.dtype for array in arrays} == {np.dtype(dtype)}
