"""Fitted rates: found again from prices at known rates, with errors that say how sure they are."""

import numpy as np
import pytest

from labkit.schedules import ALLREDUCE
from labkit.schedules.cost_model import CostModel, cost
from labkit.schedules.fitting import Measurement, fit

RATES = CostModel(alpha=3e-5, beta=8e-10, gamma=3e-10)
SIZES = [4 * 4**k for k in range(13)]
ALGORITHMS = [make(p) for make in ALLREDUCE.values() for p in (3, 4)]


def measured(rates=RATES, noise=0.0, algorithms=ALGORITHMS, sizes=SIZES):
    random = np.random.default_rng(0)
    return [
        Measurement(algorithm, n, cost(algorithm, n, rates) * np.exp(noise * random.normal()))
        for algorithm in algorithms
        for n in sizes
    ]


@pytest.mark.parametrize(
    "rates", [RATES, CostModel(1e-6, 1e-9), CostModel(0, 2e-9, 1e-9), CostModel(1e-3, 1e-12, 1e-9)]
)
def test_rates_are_found_again(rates):
    found = fit(measured(rates))
    assert found.rates == pytest.approx(rates, rel=1e-6, abs=1e-16)
    assert found.predict(ALLREDUCE["ring"](7), 12345 * 4) == pytest.approx(
        cost(ALLREDUCE["ring"](7), 12345 * 4, rates)
    )


def test_standard_errors_are_as_large_as_the_noise_makes_them():
    found = fit(measured(noise=0.1))
    off = np.abs(np.subtract(found.rates, RATES)) / found.errors
    assert (off < 3.5).all() and (np.array(found.errors) < 0.4 * np.array(RATES)).all()
    assert np.array(fit(measured(noise=0.01)).errors) == pytest.approx(np.array(found.errors) / 10, rel=0.2)


def test_every_size_counts_as_much_as_any_other():
    found = fit(measured(noise=0.1, algorithms=[ALLREDUCE["recursive-doubling"](4)]))
    ratio = [
        found.predict(algorithm, n) / seconds
        for algorithm, n, seconds in measured(algorithms=[ALLREDUCE["recursive-doubling"](4)])
    ]
    assert np.abs(np.log(ratio)).max() < 0.1


def test_what_cannot_be_told_apart_is_one_rate():
    # Bytes sent and added keep one ratio in the ring: one of the two rates takes all, and none is negative.
    found = fit(measured(algorithms=[ALLREDUCE["ring"](4)], sizes=SIZES[2:]))
    assert found.rates.alpha == pytest.approx(RATES.alpha) and found.rates.gamma == 0
    assert found.rates.beta == pytest.approx(RATES.beta + RATES.gamma / 2) and np.isnan(found.errors.gamma)
    assert "gamma = 0 ± nan" in str(found) and "alpha = 30 ±" in str(found)


def test_rates_are_never_negative():
    falling = [Measurement(ALLREDUCE["ring"](4), n, 1e-3 / (1 + k)) for k, n in enumerate(SIZES)]
    assert min(fit(falling).rates) >= 0


@pytest.mark.parametrize(
    ("rows", "said"), [([], "at least one"), ([(ALGORITHMS[0], 4, 0.0)], "times above 0")]
)
def test_what_no_rate_can_be_fitted_to_is_told(rows, said):
    with pytest.raises(ValueError, match=said):
        fit(rows)
