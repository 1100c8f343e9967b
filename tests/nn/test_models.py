"""Models of many layers: parameters, buffers, seeds, unfit input, and learning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from labkit import data
from labkit.nn import (
    MODELS,
    Classifier,
    Model,
    lenet5,
    linear_regression,
    softmax_regression,
    vgg11,
)
from labkit.nn.image_layers import BatchNorm, Conv2D, MaxPool
from labkit.nn.layers import Dense, Flatten

RNG = np.random.default_rng(3)


def small(seed: int = 0) -> Classifier:
    """Return a small model that has every type of parameter and buffer."""
    layers = [("conv", Conv2D(4, 3, pad=1)), ("norm", BatchNorm()), ("pool", MaxPool(2))]
    return Classifier(
        "small", [*layers, ("flatten", Flatten()), ("dense", Dense(3))], (2, 4, 4), seed, np.float32
    )


def batch(model: Model, n: int = 5) -> tuple[np.ndarray, np.ndarray]:
    x = RNG.normal(size=(n, *model.input_shape)).astype(model.params.dtype)
    return x, RNG.integers(0, model.outputs, n)


@pytest.mark.parametrize(
    ("name", "parameters", "buffers"),
    [
        ("linear", 11, 0),
        ("softmax", 650, 0),
        ("mlp", 4810, 0),
        ("lenet5", 61706, 0),
        ("mnist-cnn", 206922, 0),
        ("vgg11", 9231114, 5504),
    ],
)
def test_numbers_of_parameters_and_buffers(name: str, parameters: int, buffers: int) -> None:
    model = MODELS[name]()
    assert (model.name, model.params.size, model.buffers.size) == (name, parameters, buffers)
    assert model.params.dtype == model.grads.dtype == model.buffers.dtype == np.float32


def test_parameters_gradients_and_buffers_are_views_of_three_flat_arrays() -> None:
    model = small()
    assert list(model.named_parameters()) == [
        *("conv.W", "conv.b", "norm.gamma", "norm.beta", "dense.W", "dense.b")
    ]
    assert list(model.named_buffers()) == ["norm.mean", "norm.var"]
    for flat, named in (
        (model.params, model.named_parameters()),
        (model.grads, model.named_gradients()),
        (model.buffers, model.named_buffers()),
    ):
        flat[...] = np.arange(flat.size)
        assert np.concatenate([view.ravel() for view in named.values()]).tolist() == flat.tolist()
    # The layers hold views of them, too, not copies.
    assert np.shares_memory(model.layers[0].p["W"], model.params)
    assert np.shares_memory(model.layers[-1].g["b"], model.grads)


def test_every_gradient_is_overwritten() -> None:
    model = vgg11(width=16)  # with Winograd convolution, too
    x, y = batch(model, 2)
    model.grads[...] = np.nan
    model.loss_and_gradient(x, y)
    first = model.grads.copy()
    assert np.isfinite(first).all()
    model.loss_and_gradient(*batch(model, 3))  # another batch size in between
    model.loss_and_gradient(x, y)
    np.testing.assert_array_equal(model.grads, first)


def test_running_statistics_change_only_in_training() -> None:
    model = small()
    x, y = batch(model)
    assert model.named_buffers()["norm.mean"].tolist() == [0] * 4
    assert model.named_buffers()["norm.var"].tolist() == [1] * 4
    model.loss(x, y)
    model.predict(x)
    assert model.named_buffers()["norm.mean"].tolist() == [0] * 4
    training = model.loss_and_gradient(x, y)
    moved = model.buffers.copy()
    assert moved[:4].any()
    assert model.loss(x, y) != training  # it uses the running statistics, not those of the batch
    np.testing.assert_array_equal(model.buffers, moved)
    for _ in range(200):
        model.forward(x, training=True)
    out = model.layers[0].forward(x, False)
    np.testing.assert_allclose(model.named_buffers()["norm.mean"], out.mean(axis=(0, 2, 3)), rtol=1e-4)
    unbiased = out.var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(model.named_buffers()["norm.var"], unbiased, rtol=1e-4)


def test_layers_of_equal_shape_have_different_initial_weights() -> None:
    model = vgg11(seed=1)
    named = model.named_parameters()
    assert named["conv7.W"].shape == named["conv8.W"].shape
    assert abs(np.corrcoef(named["conv7.W"].ravel(), named["conv8.W"].ravel())[0, 1]) < 0.01
    np.testing.assert_array_equal(model.params, vgg11(seed=1).params)
    assert np.abs(model.params - vgg11(seed=2).params).max() > 0.01
    assert named["conv8.W"].std() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.01)


def test_initial_weights_differ_from_those_that_made_data_of_the_same_seed() -> None:
    """With a shared random stream, training would start at the solution."""
    made = data.linear(seed=0)
    assert linear_regression(seed=0).loss(made.x_train, made.y_train) > 0.1


def test_predict_returns_the_most_probable_class() -> None:
    model = softmax_regression(2, 3)
    model.named_parameters()["W"][...] = [[1, 0, 0], [0, 0, 1]]
    model.named_parameters()["b"][...] = 0
    assert model.predict(np.array([[2, 1], [1, 2]], np.float32)).tolist() == [0, 2]


X = np.zeros((4, 1, 32, 32), np.float32)
Y = np.arange(4)
FLAT, VALUES = np.ones((4, 6), np.float32), np.ones((4, 3), np.float32)
LINEAR, SOFTMAX = partial(linear_regression, 6, 3), partial(softmax_regression, 6, 3)
NAN, INF = X.copy(), X.copy()
NAN[1, 0, 2, 3], INF[1, 0, 2, 3] = np.nan, np.inf


@pytest.mark.parametrize(
    ("make", "x", "y", "message"),
    [
        (lenet5, X[:, 0], Y, r"'conv1'.*\(4, 32, 32\).*\(batch, 1, 32, 32\).*\(5, 5, 1, 6\)"),
        (lenet5, X.repeat(3, axis=1), Y, r"'conv1'.*\(4, 3, 32, 32\).*\(batch, 1, 32, 32\)"),
        (lenet5, X[:, :, :28, :28], Y, r"'conv1'.*\(4, 1, 28, 28\)"),
        (lenet5, X[:0], Y[:0], r"'conv1'.*\(0, 1, 32, 32\).*batch ≥ 1"),
        (lenet5, X.astype(np.float64), Y, "'conv1'.*float64.*float32"),
        (lenet5, X.astype(np.uint8), Y, "'conv1'.*uint8.*float32"),
        (lenet5, NAN, Y, r"'conv1'.*\(4, 1, 32, 32\).*NaN"),
        (lenet5, INF, Y, r"'conv1'.*\(4, 1, 32, 32\).*infinite"),
        (lenet5, X, Y + 7, r"'dense2'.*7 … 10.*0 … 9.*\(4,\)"),
        (lenet5, X, Y - 1, "'dense2'.*-1 … 2"),
        (lenet5, X, Y[:3], r"'dense2'.*\(3,\).*\(4,\)"),
        (lenet5, X, Y.astype(float), "'dense2'.*float64.*integers"),
        (LINEAR, FLAT[:, :5], VALUES, r"'linear'.*\(4, 5\).*\(batch, 6\)"),
        (LINEAR, FLAT, VALUES[:, 0], r"\(4,\).*\(4, 3\)"),
        (LINEAR, FLAT, VALUES.astype(float), "float64"),
        (SOFTMAX, FLAT, np.ones((4, 1), int), r"'softmax'.*\(4, 1\).*\(4,\)"),
    ],
)
def test_an_unfit_batch_is_refused_with_layer_and_shapes(
    make: Callable[[], Model], x: np.ndarray, y: np.ndarray, message: str
) -> None:
    model = make()
    for call in (model.check, model.loss, model.loss_and_gradient):
        with pytest.raises(ValueError, match=message):
            call(x, y)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([("conv", Conv2D(4, 7))], r"'conv'.*\(batch, 2, 4, 4\).*7 × 7"),
        ([("flat", Flatten()), ("conv", Conv2D(4, 3))], r"'conv'.*\(32,\).*channels, height, width"),
        ([("dense", Dense(3))], r"'dense'.*\(2, 4, 4\).*flatten"),
        ([("flat", Flatten()), ("norm", BatchNorm())], r"'norm'.*\(32,\).*channels"),
        ([("pool", MaxPool(5))], r"'pool'.*\(2, 4, 4\).*≥ 5"),
    ],
)
def test_layers_that_do_not_fit_together_are_refused_by_name(layers: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Classifier("wrong", [*layers, ("end", Flatten())], (2, 4, 4), 0, np.float32)


def test_batch_norm_refuses_one_value_per_channel_in_training() -> None:
    layers = [("norm", BatchNorm()), ("flatten", Flatten())]
    model = Classifier("one", layers, (2, 1, 1), 0, np.float32)
    with pytest.raises(ValueError, match=r"'norm'.*\(1, 2, 1, 1\).*more than one value"):
        model.forward(np.ones((1, 2, 1, 1), np.float32), training=True)
    assert np.isfinite(model.forward(np.ones((1, 2, 1, 1), np.float32))).all()


def test_move_gradients_computes_them_in_the_given_array() -> None:
    x, y = np.ones((3, 10), np.float32), np.ones((3, 1), np.float32)
    model, twin = linear_regression(), linear_regression()
    for moved in model, twin:
        moved.loss_and_gradient(x, y)
    before, array = model.grads, np.zeros(20, np.float32)[4:15]
    model.move_gradients(array)
    assert model.grads is array
    np.testing.assert_array_equal(array, twin.grads)
    before[...] = 0
    for moved in model, twin:
        moved.loss_and_gradient(2 * x, y)
    np.testing.assert_array_equal(array, twin.grads)
    assert not before.any()


def test_the_backward_pass_says_which_gradients_are_complete() -> None:
    model = small()
    x, y = batch(model)
    model.loss_and_gradient(x, y)
    expected, starts = model.grads.copy(), []
    model.grads[...] = np.nan

    def finished(start: int) -> None:
        starts.append(start)
        assert np.array_equal(model.grads[start:], expected[start:])

    model.loss_and_gradient(x, y, finished)
    assert len(starts) == len(model.layers)
    assert starts == sorted(starts, reverse=True)
    assert starts[-1] == 0
