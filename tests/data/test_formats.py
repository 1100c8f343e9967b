"""Damaged files of MNIST and CIFAR-10 are refused, with file and offset; intact ones are read as written."""

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
from labkit.data import FormatError
from labkit.data.files import gunzip
from labkit.data.mnist_files import read
from tests import made_sets
from tests.made_sets import (
    archive,
    archive_files,
    cifar_members,
    gzipped,
    mnist_files,
    random_samples,
    source_for,
    write_files,
)

Load = Callable[..., data.Dataset]


@pytest.fixture
def load_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that loads a data set from the given files, with their checksums as expected."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))

    def load(name: str, files: dict[str, bytes], samples: made_sets.Samples, shape=None) -> data.Dataset:
        monkeypatch.setitem(data.SOURCES, name, source_for(name, samples, files))
        write_files(tmp_path / name, files)
        return data.load(name, shape)

    return load


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mnist", [None, (784,), (1, 28, 28), (1, 32, 32), (3, 32, 32)]),
        ("cifar10", [None, (3072,), (3, 32, 32)]),
    ],
)
def test_a_data_set_is_read_as_written(name: str, shapes: list, load_made: Load) -> None:
    samples = random_samples(name, 23, 7)
    files = archive_files(name, samples)
    for shape in shapes:
        got = load_made(name, files, samples, shape)
        for x, y, (pixels, labels) in (
            (got.x_train, got.y_train, samples["train"]),
            (got.x_test, got.y_test, samples["test"]),
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


def test_colours_and_rows_of_cifar_are_in_the_right_order(load_made: Load) -> None:
    samples = random_samples("cifar10", 5, 1)
    members = cifar_members(samples)
    row = bytearray(3073)
    row[0], row[1 + 2 * 1024 + 3 * 32 + 4] = 7, 255  # blue, fourth row, fifth column
    members["cifar-10-batches-bin/data_batch_1.bin"] = bytes(row)
    got = load_made("cifar10", {"cifar-10-binary.tar.gz": archive(members)}, samples, (3, 32, 32))
    assert got.y_train[0] == 7
    assert np.argwhere(got.x_train[0]).tolist() == [[2, 3, 4]] and got.x_train[0].max() == 1


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (0xB, ">i2"), (0xC, ">i4"), (0xD, ">f4"), (0xE, ">f8")]
)
def test_idx_files_of_all_six_types_are_read(code: int, dtype: str, tmp_path: Path) -> None:
    array = np.arange(-12, 12).reshape(2, 3, 4).astype(dtype)
    path = tmp_path / "array"
    path.write_bytes(struct.pack(">HBB3I", 0, code, 3, 2, 3, 4) + array.tobytes())
    got = read(path)
    np.testing.assert_array_equal(got, array)
    assert got.dtype == np.dtype(dtype)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("file", "change", "message"),
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
        (
            LABELS,
            lambda b: b[:4] + struct.pack(">I", 8) + b[8:-1],
            "expected 9 labels for the 9 images",
        ),
        (LABELS, lambda b: b[:12] + b"\x0a" + b[13:], "offset 12: expected a label 0 … 9, got 10"),
        (LABELS, lambda b: struct.pack(">HBB2I", 0, 8, 2, 3, 3) + b[8:], "expected unsigned bytes (n,)"),
    ],
)
def test_a_damaged_mnist_file_is_refused_with_the_offset(
    file: str, change: Callable[[bytes], bytes], message: str, load_made: Load
) -> None:
    samples = random_samples("mnist", 9, 3)
    files = mnist_files(samples)
    files[f"{file}.gz"] = gzipped(change(gzip.decompress(files[f"{file}.gz"])))
    with pytest.raises(FormatError) as error:
        load_made("mnist", files, samples)
    assert message in str(error.value) and file in str(error.value)


FIRST = "cifar-10-batches-bin/data_batch_1.bin"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop(FIRST), f"expected one file {FIRST}, got 0 files"),
        (
            lambda m: m.update({FIRST: m[FIRST][:-1]}),
            "offset 3073: expected rows of 3073 bytes, got a row of 3072",
        ),
        (
            lambda m: m.update({FIRST: m[FIRST] + b"x"}),
            "offset 6146: expected rows of 3073 bytes, got a row of 1",
        ),
        (lambda m: m.update({FIRST: m[FIRST][:3073]}), "expected 9 samples for train in total, got 8"),
        (
            lambda m: m.update({FIRST: m[FIRST][:3073] + b"\x0a" + m[FIRST][3074:]}),
            "data_batch_1.bin, offset 3073: expected a label 0 … 9, got 10",
        ),
    ],
)
def test_a_damaged_cifar_file_is_refused_with_the_offset(
    change: Callable[[dict], object], message: str, load_made: Load
) -> None:
    samples = random_samples("cifar10", 9, 2)
    members = cifar_members(samples)
    change(members)
    with pytest.raises(FormatError) as error:
        load_made("cifar10", {"cifar-10-binary.tar.gz": archive(members)}, samples)
    assert message in str(error.value)


def test_a_file_that_is_not_an_archive_is_refused(load_made: Load, tmp_path: Path) -> None:
    for content in (gzipped(b"no archive" * 200), b"not packed"):
        with pytest.raises(FormatError, match=r"cifar-10-binary\.tar\.gz, offset 0"):
            load_made("cifar10", {"cifar-10-binary.tar.gz": content}, random_samples("cifar10", 5, 1))
    assert not list(tmp_path.glob("**/*.tar")) and not list(tmp_path.glob("**/*.bin"))


def damaged(content: bytes, draw: st.DataObject) -> bytes:
    """Return the content cut, longer, or with flipped bits, as hypothesis chooses."""
    damage = draw.draw(st.sampled_from(["cut", "flip", "append", "drop"]))
    at = draw.draw(st.integers(0, len(content) - 1))
    if damage == "cut":
        return content[:at]
    if damage == "append":
        return content + draw.draw(st.binary(min_size=1, max_size=40))
    if damage == "drop":
        return content[:at] + content[at + 1 :]
    return content[:at] + bytes([content[at] ^ draw.draw(st.integers(1, 255))]) + content[at + 1 :]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@settings(max_examples=150, deadline=None)
@given(draw=st.data())
def test_damaged_archives_are_refused_or_read_as_written(
    name: str, tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    """The SHA-256 is that of the damaged file, so the formats themselves have to detect the damage."""
    samples = random_samples(name, 6, 2)
    files = archive_files(name, samples)
    which = draw.draw(st.sampled_from(sorted(files)))
    files[which] = damaged(files[which], draw)
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("LABKIT_DATA", str(folder))
        patch.setitem(data.SOURCES, name, source_for(name, samples, files))
        write_files(folder / name, files)
        try:
            got = data.load(name)
        except FormatError as error:
            assert "offset" in str(error)
            return
    for x, y, (pixels, labels) in (
        (got.x_train, got.y_train, samples["train"]),
        (got.x_test, got.y_test, samples["test"]),
    ):
        np.testing.assert_array_equal(x, pixels.reshape(len(labels), -1).astype(np.float32) / np.float32(255))
        np.testing.assert_array_equal(y, labels)


@settings(max_examples=200, deadline=None)
@given(draw=st.data())
def test_damaged_idx_files_are_refused_or_read_completely(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    array = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    path = tmp_path_factory.mktemp("idx") / "file"
    content = damaged(made_sets.idx(array), draw)
    path.write_bytes(content)
    try:
        got = read(path)
    except FormatError as error:
        assert "offset" in str(error)
        return
    # An accepted file consists of its header and exactly the bytes of the array.
    assert got.tobytes() == content[4 + 4 * got.ndim :] and len(content) == 4 + 4 * got.ndim + got.nbytes


def test_a_gzip_file_with_two_members_or_padding_is_refused(tmp_path: Path) -> None:
    for more in (gzipped(b"more"), b"\0" * 8):
        (tmp_path / "file.gz").write_bytes(gzipped(b"abc") + more)
        with pytest.raises(FormatError, match="expected the end of the file"):
            gunzip(tmp_path / "file.gz", tmp_path / "file")
        assert not (tmp_path / "file").exists()


def test_a_gzip_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Even if only the checksum or the length after the data is missing."""
    content = gzipped(b"abc" * 20)
    for cut in range(len(content)):
        (tmp_path / "file.gz").write_bytes(content[:cut])
        with pytest.raises(FormatError, match=f"offset {cut}: expected more gzip data"):
            gunzip(tmp_path / "file.gz", tmp_path / "file")
        assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("n", [0, 1, 1 << 18, (1 << 20) + 7, 5_000_000])
def test_unpacking_returns_all_bytes(n: int, tmp_path: Path) -> None:
    for content in (b"\0" * n, np.random.default_rng(0).bytes(n)):
        (tmp_path / "file.gz").write_bytes(gzipped(content))
        gunzip(tmp_path / "file.gz", tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == content
