"""How a gradient is cut into buckets."""

from __future__ import annotations

import pytest

from labkit.train import Buckets


@pytest.mark.parametrize("n", [0, 1, 2, 24, 25, 26, 1000, 9_231_114])
@pytest.mark.parametrize("settings", [(1, 1), (100, 100), (100, 1000), (1000, 100), (4e6, 5e5), (1e12, 1e12)])
def test_buckets_cover_the_gradient_from_its_end_to_its_start(n: int, settings: tuple[float, float]) -> None:
    if n > 10**6 and settings[0] < 10**5:
        return  # millions of buckets
    buckets = Buckets(*settings)
    bounds = buckets.plan(n)
    stops, starts = [stop for _, stop in bounds], [start for start, _ in bounds]
    assert [n, *starts] == [*stops, 0]
    sizes = [4 * (stop - start) for start, stop in bounds]
    assert all(0 < size <= max(4, settings[0]) for size in sizes)
    if len(sizes) > 1:
        assert max(sizes[0], sizes[-1]) <= max(4, min(settings))
    halves = buckets.plan(n, itemsize=8)
    assert len(halves) >= len(bounds)


def test_sizes_that_are_none_are_refused() -> None:
    for bad in ((0, 1), (1, 0), (float("nan"), 1), (1, float("inf"))):
        with pytest.raises(ValueError, match="expected buckets of more than 0 bytes"):
            Buckets(*bad)
