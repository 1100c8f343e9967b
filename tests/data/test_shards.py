"""Sharding schemes and minibatches: what holds for any number of samples and of ranks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import data
from labkit.cli.train import DATA, SHARD

PROMISING = ("strided", "shuffled", "weighted")  # steps that do not depend on the number of ranks


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, data.Scheme, str]:
    """A number of samples, one of ranks, and a scheme with all that it needs."""
    size = draw(st.integers(1, 12))
    n = draw(st.integers(size, 400))
    name = draw(st.sampled_from(data.SCHEMES))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    targets = rng.integers(0, 10, n) if draw(st.booleans()) else rng.normal(size=(n, 1)).astype(np.float32)
    speeds = draw(st.lists(st.floats(1e-6, 1e6), min_size=size, max_size=size))
    scheme = data.scheme(
        name, targets=targets, seed=draw(st.integers(0, 9)), epoch=draw(st.integers(1, 9)), speeds=speeds
    )
    return n, size, scheme, name


@given(case=cases())
def test_the_shards_of_every_scheme_are_disjoint_and_cover_the_set(case) -> None:
    n, size, scheme, name = case
    shards = [scheme(n, rank, size) for rank in range(size)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(n))
    assert all(len(shard) >= 1 and shard.dtype == np.int64 for shard in shards)
    if name != "weighted":  # `dealt` counts on it
        assert [len(shard) for shard in shards] == [n // size + (rank < n % size) for rank in range(size)]


@given(case=cases(), batch=st.integers(1, 500))
def test_p_ranks_see_step_by_step_the_samples_that_one_rank_sees(case, batch: int) -> None:
    n, size, scheme, name = case
    shards = [scheme(n, rank, size) for rank in range(size)]
    if name == "weighted":
        parts = [data.in_order(shard, n, batch) for shard in shards]
    else:
        parts = [data.dealt(n, batch, rank, size) for rank in range(size)]
    for shard, slices in zip(shards, parts, strict=True):  # each sample of a shard once, in its order
        ends = [0, *(part.stop for part in slices)]
        assert [part.start for part in slices] == ends[:-1] and ends[-1] == len(shard)
    if name in PROMISING:
        whole = np.arange(n) if name == "weighted" else scheme(n, 0, 1)
        steps = [whole[start : start + batch] for start in range(0, n, batch)]
        for k, step in enumerate(steps):
            seen = np.concatenate([shard[slices[k]] for shard, slices in zip(shards, parts, strict=True)])
            assert sorted(seen.tolist()) == sorted(step.tolist())
        assert {len(slices) for slices in parts} == {len(steps)}


@given(n=st.integers(20, 300), size=st.integers(1, 9), seed=st.integers(0, 1000))
def test_shuffled_shards_depend_on_seed_and_epoch_and_on_nothing_else(n: int, size: int, seed: int) -> None:
    def shards(seed: int, epoch: int) -> list[list[int]]:
        return [data.shuffled(n, rank, size, seed, epoch).tolist() for rank in range(size)]

    one = shards(seed, 1)
    assert shards(seed, 1) == one
    assert shards(seed + 1, 1) != one
    assert shards(seed, 2) != one
    assert sorted(sample for shard in one for sample in shard) == list(range(n))


def test_shuffling_favours_no_place_and_holds_no_more_than_its_share() -> None:
    n, size = 40, 4
    owned = np.zeros((n, size))
    for epoch in range(600):
        for rank in range(size):
            shard = data.shuffled(n, rank, size, 5, epoch)
            owned[shard, rank] += 1
            assert shard.base is None
    # Each sample is on each rank in a quarter of the epochs: 150 ± 10.6, here 6 standard deviations allowed.
    assert np.abs(owned - 150).max() < 64


def test_by_label_gives_each_rank_few_labels_and_strided_all() -> None:
    labels = data.load("digits").y_train
    n = len(labels)
    for size in (2, 4, 5):
        held = [len(np.unique(labels[data.by_label(labels, rank, size)])) for rank in range(size)]
        assert max(held) <= 10 // size + 2
        assert all(len(np.unique(labels[data.strided(n, rank, size)])) == 10 for rank in range(size))


@given(n=st.integers(2, 200), size=st.integers(2, 8), outlier=st.integers(0, 7), seed=st.integers(0, 50))
def test_the_outlying_shard_has_the_lowest_targets_and_the_others_are_alike(
    n: int, size: int, outlier: int, seed: int
) -> None:
    n, outlier = max(n, size), outlier % size
    targets = np.random.default_rng(seed).normal(size=n)
    shards = [data.outlying(targets, rank, size, outlier) for rank in range(size)]
    rest = np.sort(np.concatenate([shard for rank, shard in enumerate(shards) if rank != outlier]))
    assert targets[shards[outlier]].max() < targets[rest].min()
    others = [shard for rank, shard in enumerate(shards) if rank != outlier]
    for rank, shard in enumerate(others):
        assert shard.tolist() == rest[rank :: len(others)].tolist()


@given(
    n=st.integers(1, 500),
    speeds=st.lists(st.one_of(st.integers(1, 20), st.floats(1e-300, 1e300)), min_size=1, max_size=9),
)
def test_weighted_shards_are_in_proportion_to_the_speeds(n: int, speeds: list[float]) -> None:
    n = max(n, len(speeds))
    shards = [data.weighted(n, rank, speeds) for rank in range(len(speeds))]
    assert sorted(np.concatenate(shards).tolist()) == list(range(n))
    pace = np.array(speeds) / max(speeds)
    exact = n * pace / pace.sum()
    if exact.min() >= 1:
        assert all(abs(len(shard) - ideal) < 1 for shard, ideal in zip(shards, exact, strict=True))
    assert all(len(shard) >= 1 for shard in shards)
    assert all(np.all(np.diff(shard) > 0) for shard in shards)


@given(n=st.integers(1, 200), size=st.integers(1, 9), speed=st.floats(1e-3, 1e3))
def test_equal_speeds_deal_like_cards(n: int, size: int, speed: float) -> None:
    n = max(n, size)
    for rank in range(size):
        expected = data.strided(n, rank, size).tolist()
        assert data.weighted(n, rank, [speed] * size).tolist() == expected


def test_a_faster_rank_has_its_proportion_in_every_step() -> None:
    n, batch, speeds = 1000, 50, [1, 2, 2, 5]
    for rank, speed in enumerate(speeds):
        shard = data.weighted(n, rank, speeds)
        assert len(shard) == 100 * speed
        held = [part.stop - part.start for part in data.in_order(shard, n, batch)]
        assert all(abs(count - batch * speed / 10) <= 1 for count in held), held


@pytest.mark.parametrize("name", data.SCHEMES)
def test_more_ranks_than_samples_and_a_rank_that_is_none_are_refused_with_the_numbers(name: str) -> None:
    def scheme(n: int, size: int) -> data.Scheme:
        return data.scheme(name, targets=np.zeros(n, int), speeds=[1.0] * size)

    with pytest.raises(ValueError, match=r"3 samples for 4 ranks.*at most 3 ranks"):
        scheme(3, 4)(3, 0, 4)
    for rank in (4, -1):
        with pytest.raises(ValueError, match=f"rank {rank} of 4 ranks: expected 0 … 3"):
            scheme(8, 4)(8, rank, 4)
    assert scheme(1, 1)(1, 0, 1).tolist() == [0]


def test_what_a_scheme_needs_and_has_not_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="no sharding scheme 'fair': there are contiguous, strided"):
        data.scheme("fair")
    for name in ("by-label", "outlying"):
        with pytest.raises(ValueError, match=f"'{name}' needs the targets"):
            data.scheme(name)
        with pytest.raises(ValueError, match="9 targets for 10 samples"):
            data.scheme(name, targets=np.zeros(9))(10, 0, 2)
    with pytest.raises(ValueError, match="3 speeds for 2 ranks"):
        data.scheme("weighted", speeds=[1, 2, 3])(10, 0, 2)
    for bad in ([1, 0], [1, -1], [1, float("nan")], [1, float("inf")]):
        with pytest.raises(ValueError, match="above 0"):
            data.weighted(10, 0, bad)
    with pytest.raises(ValueError, match="ascending"):
        data.in_order(np.array([3, 1]), 4, 2)
    with pytest.raises(ValueError, match="a batch of 0"):
        data.in_order(np.array([0]), 1, 0)


def test_the_outlier_is_in_the_middle_as_in_report_a() -> None:
    targets = np.arange(40)[::-1]
    assert data.scheme("outlying", targets=targets)(40, 2, 4).tolist() == list(range(30, 40))


@given(n=st.integers(1, 300), batch=st.integers(1, 100), size=st.integers(1, 7))
def test_slices_of_a_dealt_shard_are_the_same_either_way(n: int, batch: int, size: int) -> None:
    n = max(n, size)
    for rank in range(size):
        slices = data.in_order(data.strided(n, rank, size), n, batch)
        assert slices == data.dealt(n, batch, rank, size)
        assert all(one.stop == other.start for one, other in pairwise(slices))


def test_the_command_line_knows_every_set_and_scheme() -> None:
    assert set(DATA) == set(data.DATASETS)
    assert SHARD == data.SCHEMES
