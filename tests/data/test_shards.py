"""Sharding schemes and local batches, for any number of samples and ranks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import data

INDEPENDENT = ("strided", "shuffled", "weighted")  # their steps do not depend on the number of ranks


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, data.Scheme, str]:
    """Draw a number of samples, a number of ranks, and a scheme with its arguments."""
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
def test_shards_of_every_scheme_are_disjoint_and_complete(case) -> None:
    n, size, scheme, name = case
    shards = [scheme(n, rank, size) for rank in range(size)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(n))
    assert all(len(shard) >= 1 and shard.dtype == np.int64 for shard in shards)
    if name != "weighted":  # `local_batches` relies on it
        assert [len(shard) for shard in shards] == [n // size + (rank < n % size) for rank in range(size)]


@given(case=cases(), batch=st.integers(1, 500))
def test_steps_do_not_depend_on_the_number_of_ranks(case, batch: int) -> None:
    n, size, scheme, name = case
    shards = [scheme(n, rank, size) for rank in range(size)]
    if name == "weighted":
        parts = [data.batches_by_index(shard, n, batch) for shard in shards]
    else:
        parts = [data.local_batches(n, batch, rank, size) for rank in range(size)]
    for shard, slices in zip(shards, parts, strict=True):  # each sample of a shard exactly once, in order
        ends = [0, *(part.stop for part in slices)]
        assert [part.start for part in slices] == ends[:-1] and ends[-1] == len(shard)
    if name in INDEPENDENT:
        whole = np.arange(n) if name == "weighted" else scheme(n, 0, 1)
        steps = [whole[start : start + batch] for start in range(0, n, batch)]
        for k, step in enumerate(steps):
            seen = np.concatenate([shard[slices[k]] for shard, slices in zip(shards, parts, strict=True)])
            assert sorted(seen.tolist()) == sorted(step.tolist())
        assert {len(slices) for slices in parts} == {len(steps)}


@given(n=st.integers(20, 300), size=st.integers(1, 9), seed=st.integers(0, 1000))
def test_shuffled_shards_depend_only_on_seed_and_epoch(n: int, size: int, seed: int) -> None:
    def shards(seed: int, epoch: int) -> list[list[int]]:
        return [data.shuffled(n, rank, size, seed, epoch).tolist() for rank in range(size)]

    one = shards(seed, 1)
    assert shards(seed, 1) == one
    assert shards(seed + 1, 1) != one
    assert shards(seed, 2) != one
    assert sorted(sample for shard in one for sample in shard) == list(range(n))


def test_shuffling_is_uniform_and_keeps_only_the_shard_in_memory() -> None:
    n, size = 40, 4
    owned = np.zeros((n, size))
    for epoch in range(600):
        for rank in range(size):
            shard = data.shuffled(n, rank, size, 5, epoch)
            owned[shard, rank] += 1
            assert shard.base is None
    # Each sample is on each rank in a quarter of the epochs: 150 ± 10.6; allow 6 standard deviations.
    assert np.abs(owned - 150).max() < 64


def test_by_label_shards_hold_few_labels_and_strided_shards_all() -> None:
    labels = data.load("digits").y_train
    n = len(labels)
    for size in (2, 4, 5):
        held = [len(np.unique(labels[data.by_label(labels, rank, size)])) for rank in range(size)]
        assert max(held) <= 10 // size + 2
        assert all(len(np.unique(labels[data.strided(n, rank, size)])) == 10 for rank in range(size))


@given(n=st.integers(2, 200), size=st.integers(2, 8), outlier=st.integers(0, 7), seed=st.integers(0, 50))
def test_the_outlying_shard_has_the_lowest_targets(n: int, size: int, outlier: int, seed: int) -> None:
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
def test_weighted_shards_are_proportional_to_the_speeds(n: int, speeds: list[float]) -> None:
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
def test_equal_speeds_give_strided_shards(n: int, size: int, speed: float) -> None:
    n = max(n, size)
    for rank in range(size):
        expected = data.strided(n, rank, size).tolist()
        assert data.weighted(n, rank, [speed] * size).tolist() == expected


def test_each_rank_has_its_proportion_of_every_step() -> None:
    n, batch, speeds = 1000, 50, [1, 2, 2, 5]
    for rank, speed in enumerate(speeds):
        shard = data.weighted(n, rank, speeds)
        assert len(shard) == 100 * speed
        held = [part.stop - part.start for part in data.batches_by_index(shard, n, batch)]
        assert all(abs(count - batch * speed / 10) <= 1 for count in held), held


@pytest.mark.parametrize("name", data.SCHEMES)
def test_too_many_ranks_and_impossible_ranks_are_refused(name: str) -> None:
    def scheme(n: int, size: int) -> data.Scheme:
        return data.scheme(name, targets=np.zeros(n, int), speeds=[1.0] * size)

    with pytest.raises(ValueError, match=r"3 samples for 4 ranks.*at most 3 ranks"):
        scheme(3, 4)(3, 0, 4)
    for rank in (4, -1):
        with pytest.raises(ValueError, match=f"expected a rank in 0 … 3, got {rank}"):
            scheme(8, 4)(8, rank, 4)
    assert scheme(1, 1)(1, 0, 1).tolist() == [0]


def test_missing_or_wrong_arguments_of_a_scheme_are_refused() -> None:
    with pytest.raises(ValueError, match="no sharding scheme 'fair'; available: contiguous, strided"):
        data.scheme("fair")
    for name in ("by-label", "outlying"):
        with pytest.raises(ValueError, match=f"'{name}' needs the targets"):
            data.scheme(name)
        with pytest.raises(ValueError, match="expected 10 targets, one for each sample, got 9"):
            data.scheme(name, targets=np.zeros(9))(10, 0, 2)
    with pytest.raises(ValueError, match="expected 2 speeds, one for each rank, got 3"):
        data.scheme("weighted", speeds=[1, 2, 3])(10, 0, 2)
    for bad in ([1, 0], [1, -1], [1, float("nan")], [1, float("inf")]):
        with pytest.raises(ValueError, match="above 0"):
            data.weighted(10, 0, bad)
    with pytest.raises(ValueError, match="ascending"):
        data.batches_by_index(np.array([3, 1]), 4, 2)
    with pytest.raises(ValueError, match="at least 1 sample, got 0"):
        data.batches_by_index(np.array([0]), 1, 0)


def test_the_outlier_is_the_middle_rank() -> None:
    targets = np.arange(40)[::-1]
    assert data.scheme("outlying", targets=targets)(40, 2, 4).tolist() == list(range(30, 40))


@given(n=st.integers(1, 300), batch=st.integers(1, 100), size=st.integers(1, 7))
def test_both_functions_give_the_same_batches_of_a_strided_shard(n: int, batch: int, size: int) -> None:
    n = max(n, size)
    for rank in range(size):
        slices = data.batches_by_index(data.strided(n, rank, size), n, batch)
        assert slices == data.local_batches(n, batch, rank, size)
        assert all(batch.stop == following.start for batch, following in pairwise(slices))
