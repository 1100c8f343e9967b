"""How a gradient is cut into buckets."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.schedules import CostModel, cost, ring_allreduce
from labkit.train import Buckets

MB = 10**6


@pytest.mark.parametrize("n", [0, 1, 2, 24, 25, 26, 1000, 9_231_114])
@pytest.mark.parametrize("settings", [(1, 1), (100, 100), (100, 1000), (1000, 100), (4e6, 5e5), (1e12, 1e12)])
def test_buckets_cover_the_gradient_from_its_end_to_its_start(n: int, settings: tuple[float, float]) -> None:
    if n > 10**6 and settings[0] < 10**5:
        return  # millions of buckets
    buckets = Buckets(*settings)
    bounds = buckets.plan(n).bounds
    stops, starts = [stop for _, stop in bounds], [start for start, _ in bounds]
    assert [n, *starts] == [*stops, 0]
    sizes = [4 * (stop - start) for start, stop in bounds]
    assert all(0 < size <= max(4, settings[0]) for size in sizes)
    if len(sizes) > 1:
        assert max(sizes[0], sizes[-1]) <= max(4, min(settings))
    assert bounds == buckets.plan(n, itemsize=4).bounds
    halves = buckets.plan(n, itemsize=8)
    assert len(halves) >= len(bounds)


def test_the_last_bucket_of_vgg_11_is_small_and_none_exceeds_its_cap() -> None:
    plan = Buckets(4 * MB, MB // 2).plan(9_231_114)
    assert plan.bounds[0] == (9_231_114 - MB // 8, 9_231_114) and plan.bounds[-1] == (0, MB // 8)
    assert max(stop - start for start, stop in plan.bounds) == MB


def test_a_plan_is_printed_as_a_table() -> None:
    lines = str(Buckets(400, 100).plan(130)).splitlines()
    assert [line.split() for line in lines] == [
        ["bucket", "values", "size"],
        ["1", "105", "…", "129", "100", "B"],
        ["2", "25", "…", "104", "320", "B"],
        ["3", "0", "…", "24", "100", "B"],
    ]


def test_sizes_that_are_none_are_refused() -> None:
    for bad in ((0, 1), (1, 0), (float("nan"), 1), (1, float("inf"))):
        with pytest.raises(ValueError, match="expected buckets of more than 0 bytes"):
            Buckets(*bad)


@pytest.mark.parametrize("p", [2, 4, 7])
def test_the_size_from_the_cost_model_costs_least(p: int) -> None:
    model, nbytes = CostModel(1e-4, 8e-9), 36_924_456
    chosen = Buckets.for_cost(nbytes, p, model)

    def seconds(bucket: float) -> float:
        """All buckets one after the other, and one more that is exposed."""
        return (nbytes / bucket + 1) * cost(ring_allreduce(p), 4 * p * round(bucket / 4 / p), model)

    sizes = chosen.bytes * np.geomspace(0.2, 5, 41)
    assert seconds(chosen.bytes) <= min(map(seconds, sizes)) * 1.0001
    small = cost(ring_allreduce(p), 4 * p * round(chosen.first_bytes / 4 / p), model)
    assert small == pytest.approx(2 * 2 * (p - 1) * model.alpha, rel=0.01)  # half of it latency
    assert chosen.first_bytes < chosen.bytes


def test_the_cost_model_of_one_rank_or_of_a_free_link_asks_for_one_bucket() -> None:
    for p, model in ((1, CostModel(1e-4, 8e-9)), (4, CostModel(1e-4, 0.0))):
        assert len(Buckets.for_cost(1000, p, model).plan(250)) == 1
