"""The fit recovers the cost model from costs computed with it, with errors that match the noise."""

import numpy as np
import pytest

from labkit.schedules import ALLREDUCE, CostModel, Measurement, cost, fit_cost_model

MODEL = CostModel(alpha=3e-5, beta=8e-10, gamma=3e-10)
SIZES = [4 * 4**k for k in range(13)]
SCHEDULES = [make(p) for make in ALLREDUCE.values() for p in (3, 4)]


def measurements(model=MODEL, noise=0.0, schedules=SCHEDULES, sizes=SIZES):
    random = np.random.default_rng(0)
    return [
        Measurement(schedule, n, cost(schedule, n, model) * np.exp(noise * random.normal()))
        for schedule in schedules
        for n in sizes
    ]


@pytest.mark.parametrize(
    "model", [MODEL, CostModel(1e-6, 1e-9), CostModel(0, 2e-9, 1e-9), CostModel(1e-3, 1e-12, 1e-9)]
)
def test_the_model_is_recovered_from_exact_times(model):
    fitted = fit_cost_model(measurements(model))
    assert fitted.model == pytest.approx(model, rel=1e-6, abs=1e-16)
    assert fitted.predict(ALLREDUCE["ring"](7), 12345 * 4) == pytest.approx(
        cost(ALLREDUCE["ring"](7), 12345 * 4, model)
    )


def test_standard_errors_grow_with_the_noise():
    fitted = fit_cost_model(measurements(noise=0.1))
    deviations = np.abs(np.subtract(fitted.model, MODEL)) / fitted.standard_errors
    assert (deviations < 3.5).all() and (np.array(fitted.standard_errors) < 0.4 * np.array(MODEL)).all()
    less_noise = fit_cost_model(measurements(noise=0.01))
    assert np.array(less_noise.standard_errors) == pytest.approx(
        np.array(fitted.standard_errors) / 10, rel=0.2
    )


def test_indistinguishable_parameters_are_fitted_as_one():
    # In the ring, bytes sent and bytes reduced have a fixed ratio: beta takes all, and gamma stays 0.
    fitted = fit_cost_model(measurements(schedules=[ALLREDUCE["ring"](4)], sizes=SIZES[2:]))
    assert fitted.model.alpha == pytest.approx(MODEL.alpha) and fitted.model.gamma == 0
    assert fitted.model.beta == pytest.approx(MODEL.beta + MODEL.gamma / 2)
    assert np.isnan(fitted.standard_errors.gamma) and fitted.standard_errors.beta >= 0
    assert str(fitted).splitlines()[2] == "gamma: contained in the others" and "alpha = 30 ±" in str(fitted)


def test_a_parameter_that_would_be_negative_is_0_with_a_standard_error():
    # Times that grow with the bytes reduced, a little less with the bytes sent than not at all.
    seconds = [cost(schedule, n, CostModel(3e-5, 0, 1e-9)) for schedule in SCHEDULES for n in SIZES]
    pairs = [(schedule, n) for schedule in SCHEDULES for n in SIZES]
    sent = [cost(schedule, n, CostModel(0, 5e-11)) for schedule, n in pairs]
    fitted = fit_cost_model(
        Measurement(*pair, time - less) for pair, time, less in zip(pairs, seconds, sent, strict=True)
    )
    assert fitted.model.beta == 0 < fitted.standard_errors.beta < 1e-10
    assert "beta = 0 ± 0.0" in str(fitted)


def test_without_more_measurements_than_parameters_there_is_no_error():
    fitted = fit_cost_model(measurements(schedules=[ALLREDUCE["ring"](4)], sizes=[64]))
    assert np.isnan(fitted.standard_errors).all() and "nan" not in str(fitted) and "±" not in str(fitted)


def test_wrong_measurements_are_refused():
    for wrong, message in (
        ([], "at least one measurement"),
        ([(SCHEDULES[0], 4, 0.0)], "times above 0 seconds"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_cost_model(wrong)
