"""The data sets by name: the embedded ones, their shapes, and augmentation."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from labkit import data
from labkit.data import Augmentation, datasets
from tests.made_sets import archive_files, random_samples, source_for, write_files

# Of the table in uint8: 64 pixels and the digit per row. From scikit-learn 1.9.1:
# x, y = load_digits(return_X_y=True); np.column_stack([x, y]).astype(np.uint8)
TABLE_SHA256 = "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"


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


def test_digits_equal_those_of_scikit_learn() -> None:
    ours = data.load("digits")
    assert ours.x_train.dtype == np.float32 and ours.y_train.dtype == np.int64
    assert (ours.features, ours.outputs, ours.labelled) == (64, 10, True)
    table = np.empty((1797, 65), np.uint8)
    test = np.arange(len(table)) % 5 == 4
    for rows, x, y in ((~test, ours.x_train, ours.y_train), (test, ours.x_test, ours.y_test)):
        table[rows, :64], table[rows, 64] = x * 16, y
    assert hashlib.sha256(table.tobytes()).hexdigest() == TABLE_SHA256
    text = datasets.DIGITS.with_name("digits.txt").read_text()
    assert "10.24432/C50P49" in text and "CC BY 4.0" in text


def test_a_damaged_table_of_digits_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = bytearray(datasets.DIGITS.read_bytes())
    damaged[-1] ^= 1
    monkeypatch.setattr(datasets, "DIGITS", tmp_path / "digits.csv.gz")
    datasets.DIGITS.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"digits\.csv\.gz is damaged"):
        data.load("digits")


def test_digits_can_be_enlarged() -> None:
    flat = data.load("digits")
    for shape in ((1, 8, 8), (1, 28, 28), (1, 32, 32), (3, 32, 32)):
        got = data.load("digits", shape)
        assert got.x_train.shape == (1438, *shape) and got.x_test.shape == (359, *shape)
        assert got.x_train.dtype == np.float32 and got.features == np.prod(shape)
        assert got.x_train.min() >= 0 and got.x_train.max() <= 1
        assert got.y_train.tolist() == flat.y_train.tolist() and got.y_test.tolist() == flat.y_test.tolist()
        assert (got.x_train == got.x_train[:, :1]).all()
        for k in range(20):  # the centre of mass, as a fraction of the side, does not move
            small, large = flat.x_train[k].reshape(8, 8), got.x_train[k, 0]
            for axis in (0, 1):
                np.testing.assert_allclose(centre(large, axis), centre(small, axis), atol=0.02)


def centre(image: np.ndarray, axis: int) -> float:
    ink = image.sum(axis=axis)
    return float((ink * (np.arange(len(ink)) + 0.5)).sum() / ink.sum() / len(ink))


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (data.load, ("cats",), "'cats'.*linear, report-a, digits"),
        (data.load, ("digits", (3, 28, 28)), r"'digits' has no shape \(3, 28, 28\).*\(1, 28, 28\)"),
        (data.load, ("linear", (1, 2, 5)), "'linear' has no shape .*it has no images"),
        (data.load, ("mnist", (2,)), r"'mnist' has no shape \(2,\)"),  # before anything is fetched
        (data.load, ("cifar10", (1, 32, 32)), r"'cifar10' has no shape \(1, 32, 32\)"),
        (data.open_dataset, ("mnist", "train", (2,)), r"'mnist' has no shape \(2,\)"),
        (data.open_dataset, ("mnist", "valid"), "'mnist' has no split 'valid'; available: train, test"),
        (data.open_dataset, ("digits",), "no data set 'digits' in files; available: mnist, cifar10"),
    ],
)
def test_unknown_shapes_splits_and_names_are_refused(call, arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*arguments)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mnist", [None, (784,), (1, 28, 28), (1, 32, 32), (3, 32, 32)]),
        ("cifar10", [None, (3072,), (3, 32, 32)]),
    ],
)
def test_the_files_of_a_data_set_are_read_as_written_in_any_order(
    name: str, shapes: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = random_samples(name, 23, 7)
    files = archive_files(name, samples)
    monkeypatch.setattr(datasets, "AT_A_TIME", 5)  # images, of 23
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    monkeypatch.setitem(data.SOURCES, name, source_for(name, files))
    write_files(tmp_path / name, files)
    for shape in shapes:
        got = data.load(name, shape)
        assert got.name == name and got.labelled and got.outputs == 10
        for split, x, y in (("train", got.x_train, got.y_train), ("test", got.x_test, got.y_test)):
            pixels, labels = samples[split]
            expected = pixels.astype(np.float32) / np.float32(255)
            if shape is None or len(shape) == 1:
                expected = expected.reshape(len(labels), -1)
            elif name == "mnist":  # grey: an edge of zeros, and channels alike
                edge = (shape[1] - 28) // 2
                expected = np.pad(expected, ((0, 0), (edge, edge), (edge, edge)))[:, None]
                expected = np.repeat(expected, shape[0], axis=1)
            np.testing.assert_array_equal(x, expected)
            assert x.dtype == np.float32 and y.dtype == np.int64
            assert y.tolist() == labels.tolist()
            wanted = np.random.default_rng(0).integers(0, len(labels), 12)
            some_x, some_y = data.open_dataset(name, split, shape).take(wanted)
            np.testing.assert_array_equal(some_x, x[wanted])
            np.testing.assert_array_equal(some_y, y[wanted])
    for outside in 23, -1:
        with pytest.raises(IndexError, match=f"sample {outside}: expected 0 … 22"):
            data.open_dataset(name).take(np.array([0, outside]))


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
    before = IMAGES.copy()
    moves = [(down, right, flip) for down in (-1, 0, 1) for right in (-1, 0, 1) for flip in (1, -1)]
    seen = set()
    for image, after in zip(IMAGES, Augmentation(1, flip=True)(IMAGES, INDICES, 0, 1), strict=True):
        fits = [m for m in moves if np.array_equal(after, shifted(image, *m[:2])[..., :: m[2]])]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) > 12  # of 18; 40 images find 16 on average
    same = Augmentation()(IMAGES, INDICES, 0, 1)
    np.testing.assert_array_equal(same, before)
    same[...] = 0
    np.testing.assert_array_equal(IMAGES, before)


def test_what_happens_to_a_sample_depends_only_on_seed_epoch_and_index() -> None:
    augment = Augmentation(2, flip=True)
    whole = augment(IMAGES, INDICES, 7, 3)
    some = np.array([30, 4, 4, 17])
    np.testing.assert_array_equal(augment(IMAGES[some], INDICES[some], 7, 3), whole[some])
    for seed, epoch in ((8, 3), (7, 4)):
        assert np.any(augment(IMAGES, INDICES, seed, epoch) != whole)
    assert augment(IMAGES[:0], INDICES[:0], 7, 3).shape == (0, 2, 5, 6)


def test_samples_and_shifts_that_do_not_fit_augmentation_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images .* got shape \(2, 64\)"):
        Augmentation(1)(np.zeros((2, 64), np.float32), np.arange(2), 0, 1)
    with pytest.raises(ValueError, match="shift of 0 or more pixels, got -1"):
        Augmentation(-1)
