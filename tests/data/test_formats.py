"""The files of MNIST and CIFAR-10, whole and damaged: never a crash, never silently other data."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import data
from labkit.data import FormatError, idx, sets
from labkit.data.gunzip import gunzip
from tests import made_sets
from tests.made_sets import archive, cifar_members, files_of, made, mnist_files, packed, put, source_of

Load = Callable[..., data.Dataset]


@pytest.fixture
def load_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a set from such files, put into an empty cache as they are; their sums are taken for right."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))

    def load(name: str, files: dict[str, bytes], parts: made_sets.Parts, shape=None) -> data.Dataset:
        monkeypatch.setitem(data.SOURCES, name, source_of(name, parts, files))
        put(tmp_path / name, files)
        return data.load(name, shape)

    return load


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mnist", [None, (784,), (1, 28, 28), (1, 32, 32), (3, 32, 32)]),
        ("cifar10", [None, (3072,), (3, 32, 32)]),
    ],
)
def test_a_set_is_read_as_it_was_written(name: str, shapes: list, load_made: Load) -> None:
    parts = made(name, 23, 7)
    files = files_of(name, parts)
    for shape in shapes:
        got = load_made(name, files, parts, shape)
        for x, y, (pixels, labels) in (
            (got.x_train, got.y_train, parts["train"]),
            (got.x_test, got.y_test, parts["test"]),
        ):
            expected = pixels.astype(np.float32) / np.float32(255)
            if shape is None or len(shape) == 1:
                expected = expected.reshape(len(labels), -1)
            elif name == "mnist":
                edge = (shape[1] - 28) // 2
                expected = np.pad(expected, ((0, 0), (edge, edge), (edge, edge)))[:, None]
                expected = np.repeat(expected, shape[0], axis=1)
            np.testing.assert_array_equal(x, expected)
            assert x.dtype == np.float32 and y.dtype == np.int64
            assert y.tolist() == labels.tolist()
        assert got.name == name and got.labelled and got.outputs == 10


def test_colours_and_rows_of_cifar_are_where_the_format_has_them(load_made: Load) -> None:
    parts = made("cifar10", 5, 1)
    members = cifar_members(parts)
    row = bytearray(3073)
    row[0], row[1 + 2 * 1024 + 3 * 32 + 4] = 7, 255  # blue, fourth row, fifth column
    members["cifar-10-batches-bin/data_batch_1.bin"] = bytes(row)
    got = load_made("cifar10", {"cifar-10-binary.tar.gz": archive(members)}, parts, (3, 32, 32))
    assert got.y_train[0] == 7
    assert np.argwhere(got.x_train[0]).tolist() == [[2, 3, 4]] and got.x_train[0].max() == 1


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (0xB, ">i2"), (0xC, ">i4"), (0xD, ">f4"), (0xE, ">f8")]
)
def test_idx_holds_any_of_its_six_types(code: int, dtype: str, tmp_path: Path) -> None:
    array = np.arange(-12, 12).reshape(2, 3, 4).astype(dtype)
    path = tmp_path / "array"
    path.write_bytes(struct.pack(">HBB3I", 0, code, 3, 2, 3, 4) + array.tobytes())
    got = idx.read(path)
    np.testing.assert_array_equal(got, array)
    assert got.dtype == np.dtype(dtype)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (IMAGES, lambda b: b"", "offset 0: expected a magic number"),
        (IMAGES, lambda b: b[:3], "offset 3: expected a magic number"),
        (IMAGES, lambda b: b"\1" + b[1:], "offset 0: expected magic 00 00"),
        (IMAGES, lambda b: b[:2] + b"\x0a" + b[3:], "got 00 00 0a 03"),
        (IMAGES, lambda b: b[:3] + b"\0" + b[4:], "offset 0: expected magic"),
        (IMAGES, lambda b: b[:10], "offset 10: expected the sizes of 3 dimensions"),
        (IMAGES, lambda b: b[:-1], f"offset {16 + 9 * 784 - 1}: expected 1 more bytes"),
        (IMAGES, lambda b: b + b"x", f"offset {16 + 9 * 784}: expected the end of the file"),
        (IMAGES, lambda b: b[:4] + struct.pack(">I", 8) + b[8:], "expected the end of the file"),
        (
            IMAGES,
            lambda b: b[:8] + struct.pack(">2I", 14, 56) + b[16:],
            "expected unsigned bytes (n, 28, 28)",
        ),
        (IMAGES, lambda b: b[:2] + b"\x09" + b[3:], "expected unsigned bytes (n, 28, 28), got int8"),
        (LABELS, lambda b: b[:-2], "offset 15: expected 2 more bytes"),
        (LABELS, lambda b: b[:4] + struct.pack(">I", 8) + b[8:-1], "offset 4: expected 9 labels"),
        (LABELS, lambda b: b[:12] + b"\x0a" + b[13:], "offset 12: expected a label 0 … 9, got 10"),
        (LABELS, lambda b: struct.pack(">HBB2I", 0, 8, 2, 3, 3) + b[8:], "expected unsigned bytes (n,)"),
    ],
)
def test_a_damaged_file_of_mnist_is_an_error_that_says_where(
    file: str, change: Callable[[bytes], bytes], words: str, load_made: Load
) -> None:
    parts = made("mnist", 9, 3)
    files = mnist_files(parts)
    files[f"{file}.gz"] = packed(change(gzip.decompress(files[f"{file}.gz"])))
    with pytest.raises(FormatError) as error:
        load_made("mnist", files, parts)
    assert words in str(error.value) and file in str(error.value)


FIRST = "cifar-10-batches-bin/data_batch_1.bin"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.pop(FIRST), f"expected one file {FIRST}, got 0"),
        (
            lambda m: m.update({FIRST: m[FIRST][:-1]}),
            "offset 3073: expected rows of 3073 bytes, got one of 3072",
        ),
        (
            lambda m: m.update({FIRST: m[FIRST] + b"x"}),
            "offset 6146: expected rows of 3073 bytes, got one of 1",
        ),
        (lambda m: m.update({FIRST: m[FIRST][:3073]}), "expected 9 samples for train in all, got 8"),
        (
            lambda m: m.update({FIRST: m[FIRST][:3073] + b"\x0a" + m[FIRST][3074:]}),
            "data_batch_1.bin, offset 3073: expected a label 0 … 9, got 10",
        ),
    ],
)
def test_a_damaged_file_of_cifar_is_an_error_that_says_where(
    change: Callable[[dict], object], words: str, load_made: Load
) -> None:
    parts = made("cifar10", 9, 2)
    members = cifar_members(parts)
    change(members)
    with pytest.raises(FormatError) as error:
        load_made("cifar10", {"cifar-10-binary.tar.gz": archive(members)}, parts)
    assert words in str(error.value)


def test_what_is_no_archive_is_an_error_that_names_it(load_made: Load, tmp_path: Path) -> None:
    for content in (packed(b"no archive" * 200), b"not packed"):
        with pytest.raises(FormatError, match=r"cifar-10-binary\.tar\.gz, offset 0"):
            load_made("cifar10", {"cifar-10-binary.tar.gz": content}, made("cifar10", 5, 1))
    assert not list(tmp_path.glob("**/*.tar")) and not list(tmp_path.glob("**/*.bin"))


def damaged(content: bytes, draw: st.DataObject) -> bytes:
    """Cut, lengthen or flip bits of a file, at places that hypothesis chooses."""
    kind = draw.draw(st.sampled_from(["cut", "flip", "append", "drop"]))
    at = draw.draw(st.integers(0, len(content) - 1))
    if kind == "cut":
        return content[:at]
    if kind == "append":
        return content + draw.draw(st.binary(min_size=1, max_size=40))
    if kind == "drop":
        return content[:at] + content[at + 1 :]
    return content[:at] + bytes([content[at] ^ draw.draw(st.integers(1, 255))]) + content[at + 1 :]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@settings(max_examples=150, deadline=None)
@given(draw=st.data())
def test_packed_files_with_any_bytes_flipped_or_cut_are_refused_or_read_the_same(
    name: str, tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    """Even where the checksum is that of the damaged file: the formats themselves have to notice."""
    parts = made(name, 6, 2)
    files = files_of(name, parts)
    which = draw.draw(st.sampled_from(sorted(files)))
    files[which] = damaged(files[which], draw)
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("LABKIT_DATA", str(folder))
        patch.setitem(data.SOURCES, name, source_of(name, parts, files))
        put(folder / name, files)
        try:
            got = data.load(name)
        except FormatError as error:
            assert "offset" in str(error)
            return
    for x, y, (pixels, labels) in (
        (got.x_train, got.y_train, parts["train"]),
        (got.x_test, got.y_test, parts["test"]),
    ):
        np.testing.assert_array_equal(x, pixels.reshape(len(labels), -1).astype(np.float32) / np.float32(255))
        np.testing.assert_array_equal(y, labels)


@settings(max_examples=200, deadline=None)
@given(draw=st.data())
def test_an_idx_file_with_any_bytes_flipped_or_cut_has_its_shape_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    array = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    path = tmp_path_factory.mktemp("idx") / "file"
    content = damaged(made_sets.idx(array), draw)
    path.write_bytes(content)
    try:
        got = idx.read(path)
    except FormatError as error:
        assert "offset" in str(error)
        return
    # What is accepted is what the bytes say, all of them and no others.
    assert got.tobytes() == content[4 + 4 * got.ndim :] and len(content) == 4 + 4 * got.ndim + got.nbytes


def test_a_packed_file_of_two_members_or_with_padding_is_refused(tmp_path: Path) -> None:
    for more in (packed(b"more"), b"\0" * 8):
        (tmp_path / "file.gz").write_bytes(packed(b"abc") + more)
        with pytest.raises(FormatError, match="expected the end of the file"):
            gunzip(tmp_path / "file.gz", tmp_path / "file")
        assert not (tmp_path / "file").exists()


def test_a_packed_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Also where all of its data came, and only the sum or the length behind them did not."""
    content = packed(b"abc" * 20)
    for cut in range(len(content)):
        (tmp_path / "file.gz").write_bytes(content[:cut])
        with pytest.raises(FormatError, match=f"offset {cut}: expected more gzip data"):
            gunzip(tmp_path / "file.gz", tmp_path / "file")
        assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("n", [0, 1, 1 << 18, (1 << 20) + 7, 5_000_000])
def test_unpacking_gives_back_all_bytes_also_where_they_packed_well(n: int, tmp_path: Path) -> None:
    for content in (b"\0" * n, np.random.default_rng(0).bytes(n)):
        (tmp_path / "file.gz").write_bytes(packed(content))
        gunzip(tmp_path / "file.gz", tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == content


@settings(max_examples=20, deadline=None)
@given(draw=st.data())
def test_any_samples_are_read_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    name = draw.draw(st.sampled_from(["mnist", "cifar10"]))
    n = draw.draw(st.integers(5, 900))  # more than a window, and than a file of the five
    parts = made(name, n, 1)
    pixels, labels = parts["train"]
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        files = files_of(name, parts)
        patch.setenv("LABKIT_DATA", str(folder))
        patch.setitem(data.SOURCES, name, source_of(name, parts, files))
        put(folder / name, files)
        data.fetch(name)
        part = data.stored(name)
        assert len(part) == n
        for _ in range(3):
            wanted = np.array(draw.draw(st.lists(st.integers(0, n - 1), max_size=60)), int)
            x, y = part.take(wanted)
            expected = pixels[wanted].reshape(len(wanted), pixels[0].size).astype(np.float32) / np.float32(
                255
            )
            np.testing.assert_array_equal(x, expected)
            np.testing.assert_array_equal(y, labels[wanted])
        for bad in (n, -1):
            with pytest.raises(IndexError, match=rf"sample {bad}: expected 0 … {n - 1}"):
                part.take(np.array([0, bad]))


def test_digits_come_enlarged_in_place_and_within_range() -> None:
    flat = data.load("digits")
    for shape in ((1, 8, 8), (1, 28, 28), (1, 32, 32), (3, 32, 32)):
        got = data.load("digits", shape)
        assert got.x_train.shape == (1438, *shape) and got.x_test.shape == (359, *shape)
        assert got.x_train.dtype == np.float32 and got.features == np.prod(shape)
        assert got.x_train.min() >= 0 and got.x_train.max() <= 1
        assert got.y_train.tolist() == flat.y_train.tolist() and got.y_test.tolist() == flat.y_test.tolist()
        assert (got.x_train == got.x_train[:, :1]).all()
        # The ink stays where it is: the centre of mass, in parts of the side.
        if shape[1] > 8:
            for k in range(20):
                small, large = flat.x_train[k].reshape(8, 8), got.x_train[k, 0]
                for axis in (0, 1):
                    np.testing.assert_allclose(_centre(large, axis), _centre(small, axis), atol=0.02)


def _centre(picture: np.ndarray, axis: int) -> float:
    ink = picture.sum(axis=axis)
    return float((ink * (np.arange(len(ink)) + 0.5)).sum() / ink.sum() / len(ink))


def test_a_shape_that_a_set_has_not_is_an_error_that_names_those_it_has() -> None:
    with pytest.raises(ValueError, match=r"no shape \(3, 28, 28\) for 'digits'.*\(1, 28, 28\)"):
        data.load("digits", (3, 28, 28))
    with pytest.raises(ValueError, match=r"'linear': it has no images"):
        data.load("linear", (1, 2, 5))
    for name in ("mnist", "cifar10"):
        with pytest.raises(ValueError, match=rf"no shape \(2,\) for '{name}'"):
            data.stored(name, shape=(2,))
        with pytest.raises(ValueError, match=rf"no shape \(2,\) for '{name}'"):
            data.load(name, (2,))  # found before anything is fetched
    with pytest.raises(ValueError, match=r"no part 'valid' of 'mnist': there are train, test"):
        data.stored("mnist", "valid")
    with pytest.raises(ValueError, match=r"no data set 'digits' in files: there are mnist, cifar10"):
        data.stored("digits")
    assert sets.DATASETS.keys() >= data.SOURCES.keys()
