"""Data sets are read in any order and shape; unknown shapes, splits and names are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import data
from tests.made_sets import archive_files, random_samples, source_for, write_files


@settings(max_examples=20, deadline=None)
@given(draw=st.data())
def test_any_samples_can_be_read_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    name = draw.draw(st.sampled_from(["mnist", "cifar10"]))
    n = draw.draw(st.integers(5, 900))  # more than one read, and more than one of the five files
    samples = random_samples(name, n, 1)
    pixels, labels = samples["train"]
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        files = archive_files(name, samples)
        patch.setenv("LABKIT_DATA", str(folder))
        patch.setitem(data.SOURCES, name, source_for(name, samples, files))
        write_files(folder / name, files)
        data.fetch(name)
        split = data.open_dataset(name)
        assert len(split) == n
        for _ in range(3):
            wanted = np.array(draw.draw(st.lists(st.integers(0, n - 1), max_size=60)), int)
            x, y = split.take(wanted)
            expected = pixels[wanted].reshape(len(wanted), pixels[0].size).astype(np.float32) / np.float32(
                255
            )
            np.testing.assert_array_equal(x, expected)
            np.testing.assert_array_equal(y, labels[wanted])
        for bad in (n, -1):
            with pytest.raises(IndexError, match=rf"sample {bad}: expected 0 … {n - 1}"):
                split.take(np.array([0, bad]))


def test_digits_can_be_enlarged() -> None:
    flat = data.load("digits")
    for shape in ((1, 8, 8), (1, 28, 28), (1, 32, 32), (3, 32, 32)):
        got = data.load("digits", shape)
        assert got.x_train.shape == (1438, *shape) and got.x_test.shape == (359, *shape)
        assert got.x_train.dtype == np.float32 and got.features == np.prod(shape)
        assert got.x_train.min() >= 0 and got.x_train.max() <= 1
        assert got.y_train.tolist() == flat.y_train.tolist() and got.y_test.tolist() == flat.y_test.tolist()
        assert (got.x_train == got.x_train[:, :1]).all()
        # The centre of mass, as a fraction of the side, does not move.
        if shape[1] > 8:
            for k in range(20):
                small, large = flat.x_train[k].reshape(8, 8), got.x_train[k, 0]
                for axis in (0, 1):
                    np.testing.assert_allclose(_centre(large, axis), _centre(small, axis), atol=0.02)


def _centre(image: np.ndarray, axis: int) -> float:
    ink = image.sum(axis=axis)
    return float((ink * (np.arange(len(ink)) + 0.5)).sum() / ink.sum() / len(ink))


def test_unknown_shapes_splits_and_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'digits' has no shape \(3, 28, 28\).*\(1, 28, 28\)"):
        data.load("digits", (3, 28, 28))
    with pytest.raises(ValueError, match=r"'linear' has no shape .*it has no images"):
        data.load("linear", (1, 2, 5))
    for name in ("mnist", "cifar10"):
        with pytest.raises(ValueError, match=rf"'{name}' has no shape \(2,\)"):
            data.open_dataset(name, shape=(2,))
        with pytest.raises(ValueError, match=rf"'{name}' has no shape \(2,\)"):
            data.load(name, (2,))  # before anything is fetched
    with pytest.raises(ValueError, match=r"'mnist' has no split 'valid'; available: train, test"):
        data.open_dataset("mnist", "valid")
    with pytest.raises(ValueError, match=r"no data set 'digits' in files; available: mnist, cifar10"):
        data.open_dataset("digits")
    assert data.DATASETS.keys() >= data.SOURCES.keys()
