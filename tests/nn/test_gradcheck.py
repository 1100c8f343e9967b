"""The gradient check finds wrong gradients, says where they are, and is not misled by kinks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from labkit.nn import (
    GradientCheck,
    Model,
    check_gradient,
    check_gradients,
    gradient_report,
    lenet5,
    linear_regression,
    mlp,
    mnist_cnn,
    ops,
    softmax_regression,
    vgg11,
)
from labkit.nn.gradcheck import difference_lines, linear_layer_check


def batch(model: Model, n: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, *model.input_shape))
    return x, rng.normal(size=(n, 1)) if model.name == "linear" else rng.integers(0, model.outputs, n)


@pytest.mark.parametrize(
    ("make", "entries", "every"),
    [
        (linear_regression, 20, 1),
        (softmax_regression, 20, 1),
        (mlp, 20, 1),
        (lenet5, 10, 1),
        (mnist_cnn, 5, 1),
        (vgg11, 1, 3),  # every third array: weights, biases, scales and offsets of some layers
    ],
)
def test_every_model_agrees_with_differences(make: Callable[..., Model], entries: int, every: int) -> None:
    model = make(dtype=np.float64)
    rng = np.random.default_rng(1)
    for view in model.named_parameters().values():
        if view.ndim == 1:  # biases of 0 and scales of 1 would hide mistakes
            view[...] = view + rng.normal(0, 0.1, view.shape)
    before = model.params.copy(), model.buffers.copy()
    names = list(model.shapes)[::every]
    checks = check_gradients(model, *batch(model), entries=entries, names=names)
    assert [check.name for check in checks] == names
    assert all(check.passed and check.checked == min(entries, check.size) for check in checks), (
        gradient_report(checks)
    )
    np.testing.assert_array_equal(model.params, before[0])
    np.testing.assert_array_equal(model.buffers, before[1])


def make_wrong(model: Model, name: str, spoil: Callable[[dict[str, np.ndarray]], None]) -> None:
    layer = next(layer for layer in model.layers if layer.name == name)
    right = layer.backward

    def backward(dy: np.ndarray) -> np.ndarray | None:
        dx = right(dy)
        spoil(layer.g)
        return dx

    layer.backward = backward  # type: ignore[method-assign]


def test_the_wrong_entry_is_reported() -> None:
    model = lenet5(dtype=np.float64)
    make_wrong(model, "conv2", lambda g: g["b"].__setitem__(3, g["b"][3] * 1.001))
    checks = check_gradients(model, *batch(model), names=["conv1.b", "conv2.b", "dense2.b"])
    assert [check.passed for check in checks] == [True, False, True]
    assert checks[1].where == (3,) and checks[1].error > 1e-5
    text = gradient_report(checks)
    assert "WRONG: 1 of 3" in text and "conv2.b at (3,)" in text and text.count("← wrong") == 1
    assert "16 of 16" in text


def relu_check(x: np.ndarray, factor: float = 1.0) -> GradientCheck:
    weights = np.linspace(1, 2, x.size)
    by_hand = factor * ops.relu_backward(weights, ops.relu(x))
    return check_gradient(lambda: float(weights @ ops.relu(x)), x, by_hand)


def test_near_a_kink_a_smaller_step_is_used() -> None:
    check = relu_check(np.array([1.0, -1.0, 3e-6, -4e-7, 2.0]))
    assert check.passed and (check.near_kink, check.on_kink) == (2, 0)
    assert "that agree with a smaller step: 2" in gradient_report([check])


def test_on_a_kink_every_subgradient_passes() -> None:
    check = relu_check(np.array([1.0, 0.0, 2.0]))
    assert check.passed and (check.near_kink, check.on_kink) == (0, 1)
    assert "left out: 1" in gradient_report([check])
    x = np.array([[3.0, 3.0], [1.0, 2.0]]).reshape(1, 1, 2, 2)  # a tie: the first gets all
    dx = ops.maxpool_backward(np.ones((1, 1, 1, 1)), x, ops.maxpool(x, 2), 2)
    check = check_gradient(lambda: float(ops.maxpool(x, 2).sum()), x, dx)
    assert check.passed and check.on_kink == 2
    assert not check_gradient(lambda: float(ops.maxpool(x, 2).sum()), x, 1.5 * dx).passed


def test_wrong_gradients_near_kinks_are_found() -> None:
    assert not relu_check(np.array([1.0, 3e-6, 0.0, 2.0]), factor=1.01).passed
    x = np.array([1.0, 0.0])
    assert not check_gradient(lambda: float(ops.relu(x).sum()), x, np.array([1.0, -0.2])).passed


def test_a_zero_gradient_passes_and_a_small_wrong_one_fails() -> None:
    x = np.array([1.0, 2.0])
    assert check_gradient(lambda: 3.0 + 0.0 * x[0], x, np.array([1e-17, -1e-17])).passed
    assert not check_gradient(lambda: 3.0 + 1e-6 * x[0], x, np.array([1.1e-6, 0.0])).passed


def test_float32_unknown_names_and_wrong_shapes_are_refused() -> None:
    model = mlp()
    x, y = batch(model)
    with pytest.raises(ValueError, match="float64"):
        check_gradients(model, x.astype(np.float32), y)
    with pytest.raises(ValueError, match=r"'conv9.W'.*dense1.W"):
        check_gradients(mlp(dtype=np.float64), x, y, names=["conv9.W"])
    with pytest.raises(ValueError, match=r"'w' has shape \(3,\), expected \(2, 2\)"):
        check_gradient(lambda: 0.0, np.zeros((2, 2)), np.zeros(3), "w")


def test_the_difference_of_a_gradient_is_described():
    right = np.array([1.0, -4.0])
    assert difference_lines("dw", right, right) == ["  dw: largest relative error 0e+00 at (0,)"]
    (line,) = difference_lines("dw", 9 * right, right)
    assert (
        line == "  dw: largest relative error 9e-01 at (1,); 9.00 times the central difference at every entry"
    )
    _, hand, difference = difference_lines("dw", right[::-1], right)
    assert "[-4.0, 1.0]" in hand and "[1.0, -4.0]" in difference


def test_a_linear_layer_is_checked_and_a_wrong_axis_or_factor_is_found():
    def right(dy, x, w):
        return dy @ w.T, x.T @ dy, dy.sum(axis=0)

    def wrong_axis(dy, x, w):
        return dy @ w.T, x.T @ dy, dy.sum(axis=1)

    def wrong_factor(dy, x, w):
        return [9 * gradient for gradient in right(dy, x, w)]

    error, lines = linear_layer_check(right)
    assert error < 1e-8 and len(lines) == 3
    error, lines = linear_layer_check(wrong_axis)
    assert error > 1e-2 and lines[2].startswith("  db: largest") and "by difference" in lines[4]
    error, lines = linear_layer_check(wrong_factor)
    assert error > 0.8 and all("9.00 times" in line for line in lines)
