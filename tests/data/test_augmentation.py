"""Data augmentation: shifts and flips that depend only on the seed, the epoch and the sample."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.data import Augmentation
from labkit.data.augmentation import random_numbers

IMAGES = np.random.default_rng(3).uniform(0.1, 1, (40, 2, 5, 6)).astype(np.float32)
INDICES = np.arange(100, 140)


def shifted(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return the image moved by so many pixels, with zeros where nothing came from."""
    out = np.zeros_like(image)
    _, height, width = image.shape
    for row in range(height):
        for column in range(width):
            if 0 <= row - down < height and 0 <= column - right < width:
                out[:, row, column] = image[:, row - down, column - right]
    return out


def test_each_image_is_shifted_or_mirrored_as_a_whole() -> None:
    moves = [(down, right, flip) for down in (-1, 0, 1) for right in (-1, 0, 1) for flip in (1, -1)]
    seen = set()
    for before, after in zip(IMAGES, Augmentation(1, flip=True)(IMAGES, INDICES, 0, 1), strict=True):
        fits = [m for m in moves if np.array_equal(after, shifted(before, *m[:2])[..., :: m[2]])]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) > 12  # of 18; 40 images find 16 on average


def test_what_happens_to_a_sample_depends_only_on_seed_epoch_and_index() -> None:
    augment = Augmentation(2, flip=True)
    whole = augment(IMAGES, INDICES, 7, 3)
    some = np.array([30, 4, 4, 17])
    np.testing.assert_array_equal(augment(IMAGES[some], INDICES[some], 7, 3), whole[some])
    for seed, epoch in ((8, 3), (7, 4)):
        assert np.any(augment(IMAGES, INDICES, seed, epoch) != whole)
    assert augment(IMAGES[:0], INDICES[:0], 7, 3).shape == (0, 2, 5, 6)


def test_without_shift_and_flip_a_copy_is_returned() -> None:
    before = IMAGES.copy()
    same = Augmentation()(IMAGES, INDICES, 0, 1)
    np.testing.assert_array_equal(same, before)
    Augmentation(1, flip=True)(IMAGES, INDICES, 0, 1)[...] = 0
    np.testing.assert_array_equal(IMAGES, before)


def test_the_numbers_of_samples_epochs_and_seeds_are_random() -> None:
    numbers = [random_numbers(np.arange(4000), seed, epoch) for seed in (0, 1, -1) for epoch in (1, 2)]
    assert len(np.unique(numbers)) == 6 * 4000
    for row in numbers:
        bits = row[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
        assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.05  # six standard deviations
    flips = np.array(numbers) >> np.uint64(32) & np.uint64(1)
    assert np.abs(np.corrcoef(flips) - np.eye(6)).max() < 0.1


def test_unfit_samples_and_shifts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images .* got shape \(2, 64\)"):
        Augmentation(1)(np.zeros((2, 64), np.float32), np.arange(2), 0, 1)
    with pytest.raises(ValueError, match="shift of 0 or more pixels, got -1"):
        Augmentation(-1)
