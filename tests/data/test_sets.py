"""The data sets, and the basic shards and local batches."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import data

SIZES = [(n, size) for size in range(1, 8) for n in (size, size + 1, 2 * size - 1, 2 * size, 29, 100)]
LABELS = np.random.default_rng(2).integers(0, 4, 100)


@pytest.mark.parametrize(
    "scheme", [data.contiguous, data.strided, lambda n, r, p: data.by_label(LABELS[:n], r, p)]
)
@pytest.mark.parametrize(("n", "size"), SIZES)
def test_shards_are_disjoint_complete_and_equal_to_within_one_sample(scheme, n: int, size: int) -> None:
    shards = [scheme(n, rank, size) for rank in range(size)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(n))
    # The first ranks hold the extra samples: `local_batches` relies on it.
    assert [len(shard) for shard in shards] == [n // size + (rank < n % size) for rank in range(size)]


def test_contiguous_strided_and_by_label_shards() -> None:
    assert data.contiguous(10, 1, 4).tolist() == [3, 4, 5]
    assert data.strided(10, 1, 4).tolist() == [1, 5, 9]
    labels = np.array([2, 0, 1, 0, 2, 1])
    assert [data.by_label(labels, rank, 3).tolist() for rank in range(3)] == [[1, 3], [2, 5], [0, 4]]


@pytest.mark.parametrize(
    "scheme", [data.contiguous, data.strided, lambda n, r, p: data.by_label(LABELS[:n], r, p)]
)
def test_fewer_samples_than_ranks_are_refused_with_both_numbers(scheme) -> None:
    with pytest.raises(ValueError, match="3 samples for 4 ranks"):
        scheme(3, 0, 4)
    with pytest.raises(ValueError, match="expected a rank in 0 … 3, got 4"):
        scheme(8, 4, 4)


@pytest.mark.parametrize(("n", "size"), SIZES)
@pytest.mark.parametrize("batch", [1, 2, 7, 64, 1000])
def test_local_batches_make_up_the_global_batch_of_each_step(n: int, size: int, batch: int) -> None:
    parts = [data.local_batches(n, batch, rank, size) for rank in range(size)]
    for k, start in enumerate(range(0, n, batch)):
        seen = [data.strided(n, rank, size)[parts[rank][k]] for rank in range(size)]
        assert sorted(np.concatenate(seen).tolist()) == list(range(start, min(start + batch, n)))
        assert max(map(len, seen)) - min(map(len, seen)) <= 1
    assert {len(steps) for steps in parts} == {-(-n // batch)}


def test_an_empty_global_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 sample, got 0"):
        data.local_batches(10, 0, 0, 1)


def test_linear_has_the_documented_shapes_and_noise() -> None:
    one, again, other = data.linear(), data.load("linear"), data.linear(seed=1)
    assert one.x_train.shape == (1000, 10) and one.y_train.shape == (1000, 1)
    assert one.x_test.shape == (250, 10) and one.y_test.shape == (250, 1)
    assert {a.dtype for a in (one.x_train, one.y_train, one.x_test, one.y_test)} == {np.dtype(np.float32)}
    assert one.x_train.min() >= 0 and one.x_train.max() <= 1
    assert one.y_train.tolist() == again.y_train.tolist() and one.y_train.tolist() != other.y_train.tolist()
    assert (one.features, one.outputs, one.labelled) == (10, 1, False)
    design = np.column_stack([one.x_train, np.ones(1000)])
    fit, *_ = np.linalg.lstsq(design, one.y_train, rcond=None)
    assert np.std(one.y_train - design @ fit) == pytest.approx(0.1, rel=0.1)


def test_only_outlying_samples_are_shifted() -> None:
    plain, shifted = data.linear(n=40), data.linear(n=40, outlying=data.contiguous(40, 2, 4))
    np.testing.assert_array_equal(plain.x_train, shifted.x_train)
    expected = np.where((np.arange(40) >= 20) & (np.arange(40) < 30), -1.25, 0)[:, None]
    np.testing.assert_allclose(shifted.y_train - plain.y_train, expected, atol=1e-6)
    np.testing.assert_array_equal(plain.y_test, shifted.y_test)


def test_digits_have_the_documented_shapes() -> None:
    digits = data.load("digits")
    assert digits.x_train.shape == (1438, 64) and digits.x_test.shape == (359, 64)
    assert digits.x_train.dtype == np.float32 and digits.y_train.dtype == np.int64
    assert digits.x_train.min() == 0 and digits.x_train.max() == 1
    assert set(digits.y_test.tolist()) == set(range(10)) == set(digits.y_train.tolist())
    assert (digits.features, digits.outputs, digits.labelled) == (64, 10, True)


def test_an_unknown_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'cats'.*linear, digits"):
        data.load("cats")
