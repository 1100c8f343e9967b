"""Files of MNIST and CIFAR-10: damaged ones are refused, with the offset; intact ones read as written."""

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
from labkit.data.formats import ARCHIVE, gunzip
from tests import made_sets
from tests.made_sets import archive, archive_files, cifar_members, gzipped, random_samples

NAMES = ("mnist", "cifar10")


def load_made(
    folder: Path,
    name: str,
    samples: made_sets.Samples,
    files: dict[str, bytes] | None = None,
    shape: tuple[int, ...] | None = None,
) -> data.Dataset:
    """Load a data set from the given files, with their checksums as expected."""
    files = files or archive_files(name, samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_DATA", str(folder))
        patch.setitem(data.SOURCES, name, made_sets.source_for(name, samples, files))
        made_sets.write_files(folder / name, files)
        return data.load(name, shape)


def assert_as_written(
    got: data.Dataset, samples: made_sets.Samples, shape: tuple[int, ...] | None = None
) -> None:
    for x, y, (pixels, labels) in (
        (got.x_train, got.y_train, samples["train"]),
        (got.x_test, got.y_test, samples["test"]),
    ):
        expected = pixels.astype(np.float32) / np.float32(255)
        if shape is None or len(shape) == 1:
            expected = expected.reshape(len(labels), -1)
        elif pixels.ndim == 3:  # grey: an edge of zeros, and channels alike
            edge = (shape[1] - 28) // 2
            expected = np.pad(expected, ((0, 0), (edge, edge), (edge, edge)))[:, None]
            expected = np.repeat(expected, shape[0], axis=1)
        np.testing.assert_array_equal(x, expected)
        assert x.dtype == np.float32 and y.dtype == np.int64
        assert y.tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mnist", [None, (784,), (1, 28, 28), (1, 32, 32), (3, 32, 32)]),
        ("cifar10", [None, (3072,), (3, 32, 32)]),
    ],
)
def test_a_data_set_is_read_as_written(name: str, shapes: list, tmp_path: Path) -> None:
    samples = random_samples(name, 23, 7)
    for shape in shapes:
        got = load_made(tmp_path, name, samples, shape=shape)
        assert_as_written(got, samples, shape)
        assert got.name == name and got.labelled and got.outputs == 10


def test_colours_and_rows_of_cifar_are_in_the_right_order(tmp_path: Path) -> None:
    samples = random_samples("cifar10", 5, 1)
    row = bytearray(3073)
    row[0], row[1 + 2 * 1024 + 3 * 32 + 4] = 7, 255  # blue, fourth row, fifth column
    members = {**cifar_members(samples), FIRST: bytes(row)}
    got = load_made(tmp_path, "cifar10", samples, {ARCHIVE: archive(members)}, (3, 32, 32))
    assert got.y_train[0] == 7
    assert np.argwhere(got.x_train[0]).tolist() == [[2, 3, 4]] and got.x_train[0].max() == 1


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
FIRST = "cifar-10-batches-bin/data_batch_1.bin"
Change = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (IMAGES, lambda b: b"", "offset 0: expected a magic number"),
        (IMAGES, lambda b: b[:3], "offset 3: expected a magic number"),
        (IMAGES, lambda b: b"\1" + b[1:], "offset 0: expected magic 00 00 08 03"),
        (IMAGES, lambda b: b[:2] + b"\x09" + b[3:], "got 00 00 09 03"),  # signed bytes
        (IMAGES, lambda b: b[:10], "offset 10: expected the sizes of 3 dimensions"),
        (IMAGES, lambda b: b[:-1], f"offset {16 + 9 * 784 - 1}: expected 1 more bytes"),
        (IMAGES, lambda b: b + b"x", f"offset {16 + 9 * 784}: expected the end of the file"),
        (IMAGES, lambda b: b[:4] + struct.pack(">I", 8) + b[8:], "expected the end of the file"),
        (IMAGES, lambda b: b[:8] + struct.pack(">2I", 14, 56) + b[16:], "(28, 28), got (14, 56)"),
        (LABELS, lambda b: b[:-2], "offset 15: expected 2 more bytes"),
        (LABELS, lambda b: b[:4] + struct.pack(">I", 8) + b[8:-1], "expected 9 labels for the 9 images"),
        (LABELS, lambda b: b[:12] + b"\x0a" + b[13:], "offset 12: expected a label 0 … 9, got 10"),
        (LABELS, lambda b: struct.pack(">HBB2I", 0, 8, 2, 3, 3) + b[8:], "magic 00 00 08 01"),
        (FIRST, lambda b: b[:-1], "offset 3073: expected rows of 3073 bytes, got a row of 3072"),
        (FIRST, lambda b: b + b"x", "offset 6146: expected rows of 3073 bytes, got a row of 1"),
        (FIRST, lambda b: b[:3073], "expected 9 samples for train in total, got 8"),
        (FIRST, lambda b: b[:3073] + b"\x0a" + b[3074:], "offset 3073: expected a label 0 … 9, got 10"),
    ],
)
def test_a_damaged_file_is_refused_with_the_offset(
    file: str, change: Change, message: str, tmp_path: Path
) -> None:
    name = "cifar10" if file == FIRST else "mnist"
    samples = random_samples(name, 9, 3)
    if file == FIRST:
        members = cifar_members(samples)
        files = {ARCHIVE: archive({**members, FIRST: change(members[FIRST])})}
    else:
        files = archive_files(name, samples)
        files[f"{file}.gz"] = gzipped(change(gzip.decompress(files[f"{file}.gz"])))
    with pytest.raises(FormatError) as error:
        load_made(tmp_path, name, samples, files)
    assert message in str(error.value)
    assert Path(file).name in str(error.value) or "in total" in message  # a number that several files make up


def test_a_file_that_is_no_archive_or_lacks_a_file_is_refused(tmp_path: Path) -> None:
    samples = random_samples("cifar10", 5, 1)
    members = cifar_members(samples)
    del members[FIRST]
    for content, message in (
        (gzipped(b"no archive" * 200), "offset 0"),
        (b"not packed", "offset 0"),
        (archive(members), f"expected one file {FIRST}, got 0 files"),
    ):
        with pytest.raises(FormatError, match=rf"cifar-10-binary\.tar\.gz, .*{message}"):
            load_made(tmp_path, "cifar10", samples, {ARCHIVE: content})
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inside", [False, True])
@settings(max_examples=75)
@given(draw=st.data())
def test_damaged_files_are_refused_or_read_as_written(
    name: str, inside: bool, tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    """The SHA-256 is that of the damaged file, so the formats themselves have to detect the damage.

    `inside`: in the gzipped files, where a changed pixel or label cannot be detected.
    """
    samples = random_samples(name, 6, 2)
    files = archive_files(name, samples)
    which = draw.draw(st.sampled_from(sorted(files)))
    files[which] = (
        gzipped(damaged(gzip.decompress(files[which]), draw)) if inside else damaged(files[which], draw)
    )
    try:
        got = load_made(tmp_path_factory.mktemp("cache"), name, samples, files)
    except FormatError as error:
        assert "offset" in str(error)
        return
    if inside:
        assert got.x_train.shape == (6, samples["train"][0][0].size) and got.y_train.max() < 10
    else:
        assert_as_written(got, samples)


def test_a_gzip_file_with_more_or_less_than_one_member_is_refused(tmp_path: Path) -> None:
    """Even if only the checksum or the length after the data is missing."""
    packed = gzipped(b"abc" * 20)
    cases = {packed + gzipped(b"more"): "the end of the file", packed + b"\0" * 8: "the end of the file"}
    cases |= {packed[:cut]: f"offset {cut}: expected more gzip data" for cut in range(len(packed))}
    for content, message in cases.items():
        (tmp_path / "file.gz").write_bytes(content)
        with pytest.raises(FormatError, match=message):
            gunzip(tmp_path / "file.gz", tmp_path / "file")
        assert not (tmp_path / "file").exists()


@settings(max_examples=20)
@given(draw=st.data())
def test_any_samples_can_be_read_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    name = draw.draw(st.sampled_from(NAMES))
    n = draw.draw(st.integers(5, 900))  # more than one read, and more than one of the five files
    samples, folder = random_samples(name, n, 1), tmp_path_factory.mktemp("cache")
    whole = load_made(folder, name, samples)
    assert_as_written(whole, samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_DATA", str(folder))
        split = data.open_dataset(name)
    assert len(split) == n
    for _ in range(3):
        wanted = np.array(draw.draw(st.lists(st.integers(0, n - 1), max_size=60)), int)
        x, y = split.take(wanted)
        np.testing.assert_array_equal(x, whole.x_train[wanted])
        np.testing.assert_array_equal(y, whole.y_train[wanted])
    for bad in (n, -1):
        with pytest.raises(IndexError, match=rf"sample {bad}: expected 0 … {n - 1}"):
            split.take(np.array([0, bad]))
