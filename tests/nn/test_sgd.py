"""SGD and AdamW on the flat array, and learning-rate schedules."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.nn import SGD, AdamW, SteppedSGD, lr_schedules, sgd_step


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 1e-2)])
def test_sgd_is_its_formula_on_whole_arrays(momentum: float, decay: float) -> None:
    """The loop over blocks agrees with it; the last block is not full."""
    rng = np.random.default_rng(0)
    params, velocity = rng.normal(size=100_001).astype(np.float32), np.zeros(100_001, np.float32)
    sgd, plain = SGD(params.copy(), momentum, decay), params.copy()
    for _ in range(3):
        grads = rng.normal(size=params.size).astype(np.float32)
        kept = grads.copy()
        sgd.step(grads, 0.1)
        sgd_step(plain, grads, 0.1)
        np.testing.assert_array_equal(grads, kept)
        velocity = np.float32(momentum) * velocity + (grads + np.float32(decay) * params)
        params = params - np.float32(0.1) * velocity
    assert sgd.params.dtype == np.float32
    np.testing.assert_allclose(sgd.params, params, rtol=1e-5, atol=1e-6)
    assert np.allclose(plain, params, rtol=1e-5, atol=1e-6) == (momentum == 0)


def test_a_function_takes_the_steps_of_an_optimiser() -> None:
    def step(*arguments: object) -> None:
        params, velocity, grads, lr, momentum, decay = arguments
        velocity *= momentum
        velocity += grads + decay * params
        params -= lr * velocity

    rng = np.random.default_rng(1)
    stepped = SteppedSGD(rng.normal(size=50), 0.9, 0.1, function=step)
    plain = SGD(stepped.params.copy(), 0.9, 0.1)
    assert isinstance(stepped.on(plain.params), SteppedSGD)
    for _ in range(3):
        grads = rng.normal(size=50)
        stepped.step(grads, 0.1)
        plain.step(grads, 0.1)
    np.testing.assert_allclose(stepped.params, plain.params)
    np.testing.assert_allclose(stepped.state()["velocity"], plain.velocity)
    with pytest.raises(ValueError, match=r"\(50,\).*\(2,\)"):
        stepped.step(np.zeros(2), 0.1)


def test_unfit_gradients_and_parameters_are_refused() -> None:
    sgd = SGD(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        sgd.step(np.zeros(2, np.float32), 0.1)
    with pytest.raises(ValueError, match=r"float32.*float64"):
        sgd.step(np.zeros(3), 0.1)
    for momentum, decay in ((1.0, 0.0), (-0.1, 0.0), (0.0, -1.0)):
        with pytest.raises(ValueError, match="expected"):
            SGD(np.zeros(3), momentum, decay)
    with pytest.raises(ValueError, match=r"float64.*float32"):
        AdamW(np.zeros(3)).step(np.zeros(3, np.float32), 0.1)
    for settings in ({"betas": (0.9, 1.0)}, {"eps": 0.0}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError, match="expected 0 ≤ beta < 1"):
            AdamW(np.zeros(3), **settings)


def test_learning_rate_schedules() -> None:
    assert [lr_schedules.constant(0.5)(step) for step in (0, 9)] == [0.5, 0.5]
    decay = lr_schedules.step_decay(0.8, every=3, factor=0.5)
    assert [decay(step) for step in range(7)] == pytest.approx([0.8] * 3 + [0.4] * 3 + [0.2])
    half = lr_schedules.cosine(0.4, 4)
    assert [half(step) for step in (0, 2, 4, 9)] == pytest.approx([0.4, 0.2, 0.0, 0.0])
    assert half(1) == pytest.approx(0.4 * (1 + 0.5**0.5) / 2)
    scaled = lr_schedules.linear_scaling(3, 4, decay)
    assert [scaled(step) for step in range(6)] == pytest.approx([0.8, 1.2, 1.6, 1.0, 1.2, 1.2])
    assert lr_schedules.linear_scaling(3, 0, decay)(0) == pytest.approx(2.4)
    for wrong in (
        lambda: lr_schedules.step_decay(1, 0),
        lambda: lr_schedules.cosine(1, 0),
        lambda: lr_schedules.linear_scaling(0, 1, decay),
        lambda: lr_schedules.linear_scaling(1, -1, decay),
    ):
        with pytest.raises(ValueError, match="1 or more"):
            wrong()


def test_adamw_is_the_papers_formula_for_large_and_small_gradients() -> None:
    rng, n = np.random.default_rng(0), 70_001  # the last cache block is not full
    w, m, v = rng.normal(size=n), np.zeros(n), np.zeros(n)
    adamw, scale = AdamW(w.copy(), (0.8, 0.95), 1e-6, 0.1), 10.0 ** rng.integers(-8, 8, n)
    for t in range(1, 21):
        g, lr = scale * rng.normal(size=n), 0.1 / t
        adamw.step(g, lr)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        w = w - lr * (m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-6) + 0.1 * w)
    np.testing.assert_allclose(adamw.params, w, rtol=0, atol=1e-10)
    assert repr(adamw) == "AdamW(betas=(0.8, 0.95), eps=1e-06, weight_decay=0.1)"
    assert int(adamw.state()["steps"]) == 20
