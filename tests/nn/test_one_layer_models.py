"""Models of one layer: linear and softmax regression on one flat array."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.nn import (
    Model,
    check_gradients,
    linear_regression,
    numerical_gradient,
    sgd_step,
    softmax_regression,
)

RNG = np.random.default_rng(3)


def batch(model: Model, n: int = 7) -> tuple[np.ndarray, np.ndarray]:
    dtype = model.params.dtype
    x = RNG.normal(size=(n, model.inputs)).astype(dtype)
    if model.name == "softmax":
        return x, RNG.integers(0, model.outputs, n)
    return x, RNG.normal(size=(n, model.outputs)).astype(dtype)


@pytest.fixture(params=[linear_regression, softmax_regression])
def model(request: pytest.FixtureRequest) -> Model:
    model: Model = request.param(6, 3, seed=4, dtype=np.float64)
    return model


def test_every_gradient_agrees_with_central_differences(model: Model) -> None:
    before = model.params.copy()
    checks = check_gradients(model, *batch(model))
    assert [check.name for check in checks] == ["W", "b"]
    assert max(check.error for check in checks) < 1e-8
    np.testing.assert_array_equal(model.params, before)


def test_a_wrong_loss_gradient_is_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    right = model._loss_backward
    monkeypatch.setattr(model, "_loss_backward", lambda out, y: 1.01 * right(out, y))
    assert min(check.error for check in check_gradients(model, *batch(model))) > 1e-3


def test_parameters_and_gradients_are_views_of_flat_arrays(model: Model) -> None:
    for flat, named in (
        (model.params, model.named_parameters()),
        (model.grads, model.named_gradients()),
    ):
        assert flat.flags.c_contiguous and flat.shape == (6 * 3 + 3,)
        assert {name: view.shape for name, view in named.items()} == {"W": (6, 3), "b": (3,)}
        flat[...] = np.arange(flat.size)
        assert np.concatenate([view.ravel() for view in named.values()]).tolist() == flat.tolist()
    model.loss_and_gradient(*batch(model))
    assert model.named_gradients()["b"].base is not None and model.grads[-3:].any()


def test_loss_and_gradient_overwrites_the_gradient_and_returns_the_loss(model: Model) -> None:
    x, y = batch(model)
    first = model.loss_and_gradient(x, y), model.grads.copy()
    again = model.loss_and_gradient(x, y), model.grads.copy()
    assert first[0] == again[0] == model.loss(x, y)
    np.testing.assert_array_equal(first[1], again[1])


def test_the_weighted_mean_over_local_batches_is_that_of_the_whole_batch(model: Model) -> None:
    x, y = batch(model, 10)
    loss = model.loss_and_gradient(x, y)
    whole = model.grads.copy()
    total, summed = 0.0, np.zeros_like(whole)
    for part in (slice(0, 3), slice(3, 10)):
        total += (part.stop - part.start) * model.loss_and_gradient(x[part], y[part])
        summed += (part.stop - part.start) * model.grads
    assert total / 10 == pytest.approx(loss)
    np.testing.assert_allclose(summed / 10, whole, rtol=1e-10, atol=1e-14)


def test_the_seed_determines_the_initial_weights() -> None:
    weights = [softmax_regression(seed=seed).params for seed in (0, 0, 1)]
    assert weights[0].dtype == np.float32 and weights[0].tolist() == weights[1].tolist()
    assert np.abs(weights[0] - weights[2]).max() > 0.1
    assert linear_regression().named_parameters()["W"].shape == (10, 1)


def test_initial_weights_differ_from_those_that_made_data_of_the_same_seed() -> None:
    """With a shared random stream, training would start at the solution."""
    from labkit.data import linear  # noqa: PLC0415

    data = linear(seed=0)
    assert linear_regression(seed=0).loss(data.x_train, data.y_train) > 0.1


def test_sgd_step_updates_the_parameters_in_place() -> None:
    params, grads = np.array([1, 2], np.float32), np.array([10, -20], np.float32)
    sgd_step(params, grads, 0.1)
    np.testing.assert_allclose(params, [0, 4])
    assert params.dtype == np.float32


def test_predict_returns_the_most_probable_class() -> None:
    model = softmax_regression(2, 3)
    model.named_parameters()["W"][...] = [[1, 0, 0], [0, 0, 1]]
    model.named_parameters()["b"][...] = 0
    assert model.predict(np.array([[2, 1], [1, 2]], np.float32)).tolist() == [0, 2]


X = np.ones((4, 6), np.float32)


@pytest.mark.parametrize(
    ("make", "x", "y", "message"),
    [
        (linear_regression, X[:, :5], np.ones((4, 3), np.float32), r"'linear'.*\(4, 5\).*\(batch, 6\)"),
        (linear_regression, X[0], np.ones((4, 3), np.float32), r"\(6,\)"),
        (linear_regression, X[:0], np.ones((0, 3), np.float32), r"\(0, 6\)"),
        (linear_regression, X.astype(float), np.ones((4, 3), np.float32), "float64.*float32"),
        (linear_regression, X, np.ones(4, np.float32), r"\(4,\).*\(4, 3\)"),
        (linear_regression, X, np.ones((4, 3)), "float64"),
        (softmax_regression, X, np.ones((4, 1), int), r"'softmax'.*\(4, 1\).*\(4,\)"),
        (softmax_regression, X, np.ones(4, np.float32), "float32.*integers"),
        (softmax_regression, X, np.array([0, 1, 2, 3]), r"0 … 3.*0 … 2"),
        (softmax_regression, X, np.array([0, 1, 2, -1]), "-1"),
    ],
)
def test_an_unfit_batch_is_refused_with_layer_and_shapes(make, x, y, message) -> None:
    model = make(6, 3)
    for call in (model.loss, model.loss_and_gradient):
        with pytest.raises(ValueError, match=message):
            call(x, y)


def test_numerical_gradient_refuses_float32() -> None:
    with pytest.raises(ValueError, match="float64"):
        numerical_gradient(lambda: 0.0, X)
