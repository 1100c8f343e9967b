"""Sharding schemes and local batches, for any number of samples and ranks."""

from __future__ import annotations

from collections.abc import Callable

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
    dealt = np.stack(shards, axis=1).reshape(-1) if name == "distributed-sampler" else np.concatenate(shards)
    assert sorted(dealt[:n].tolist()) == list(range(n))
    assert dealt[n:].tolist() == dealt[: len(dealt) - n].tolist()  # "distributed-sampler" repeats the first
    assert len(dealt) == (n if name != "distributed-sampler" else -(-n // size) * size)
    n = len(dealt)
    assert all(len(shard) >= 1 and shard.dtype == np.int64 for shard in shards)
    if name != "weighted":  # `local_batches` relies on it
        assert [len(shard) for shard in shards] == [n // size + (rank < n % size) for rank in range(size)]


@given(case=cases(), batch=st.integers(1, 500))
def test_steps_do_not_depend_on_the_number_of_ranks(case, batch: int) -> None:
    n, size, scheme, name = case
    shards = [scheme(n, rank, size) for rank in range(size)]
    n = sum(map(len, shards))  # with the samples that "distributed-sampler" repeats
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
            held = [slices[k].stop - slices[k].start for slices in parts]
            assert name == "weighted" or max(held) - min(held) <= 1
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


def test_single_shards_by_hand() -> None:
    assert data.contiguous(10, 1, 4).tolist() == [3, 4, 5]
    assert data.strided(10, 1, 4).tolist() == [1, 5, 9]
    labels = np.array([2, 0, 1, 0, 2, 1])
    assert [data.by_label(labels, rank, 3).tolist() for rank in range(3)] == [[1, 3], [2, 5], [0, 4]]
    outlying = data.scheme("outlying", targets=np.arange(40)[::-1])
    assert outlying(40, 2, 4).tolist() == list(range(30, 40)), "the middle rank is the outlier"


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.scheme("fair"), "no sharding scheme 'fair'; available: contiguous, strided"),
        (lambda: data.scheme("by-label"), "'by-label' needs the targets"),
        (lambda: data.scheme("outlying"), "'outlying' needs the targets"),
        (lambda: data.scheme("by-label", targets=np.zeros(9))(10, 0, 2), "expected 10 targets.* got 9"),
        (lambda: data.scheme("weighted", speeds=[1, 2, 3])(10, 0, 2), "expected 2 speeds.* got 3"),
        (lambda: data.weighted(10, 0, [1, 0]), "above 0"),
        (lambda: data.weighted(10, 0, [1, float("nan")]), "above 0"),
        (lambda: data.weighted(10, 0, [1, float("inf")]), "above 0"),
        (lambda: data.batches_by_index(np.array([3, 1]), 4, 2), "ascending"),
        (lambda: data.batches_by_index(np.array([0]), 1, 0), "at least 1 sample, got 0"),
        (lambda: data.local_batches(10, 0, 0, 1), "at least 1 sample, got 0"),
    ],
)
def test_missing_or_wrong_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@given(n=st.integers(1, 300), batch=st.integers(1, 100), size=st.integers(1, 7), speed=st.floats(1e-3, 1e3))
def test_with_equal_speeds_shards_are_strided_and_both_functions_cut_them_alike(
    n: int, batch: int, size: int, speed: float
) -> None:
    n = max(n, size)
    for rank in range(size):
        shard = data.strided(n, rank, size)
        assert data.weighted(n, rank, [speed] * size).tolist() == shard.tolist()
        assert data.batches_by_index(shard, n, batch) == data.local_batches(n, batch, rank, size)
