"""The large data sets: their sources, the cache folder, and what is in it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from labkit.data import formats
from labkit.data.formats import FormatError, RowFile
from labkit.files import atomic_write, taking_turns

CACHE = "LABKIT_DATA"  # environment variable with the path of another cache folder


class FetchError(OSError):
    """A data set is not in the cache and cannot be downloaded; the message says what to do instead."""


@dataclass(frozen=True)
class Source:
    """A data set that has to be fetched.

    `files` maps file names to the SHA-256 of the originals. Each address in `mirrors` holds all files; the
    first is tried first. `samples` maps splits to numbers of samples. `image` is (channels, height, width).
    `unpack` and `read_split` belong to the format (see labkit.data.formats). In each row of a file, the image
    comes last.
    """

    description: str
    files: Mapping[str, str]
    mirrors: tuple[str, ...]
    samples: Mapping[str, int]
    image: tuple[int, int, int]
    unpack: Callable[[Path], list[Path]]
    read_split: Callable[[Path, str], tuple[list[RowFile], np.ndarray]]


SOURCES: dict[str, Source] = {
    "mnist": Source(
        description="70,000 handwritten digits, 28×28",
        files={
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        samples={"train": 60_000, "test": 10_000},
        image=(1, formats.SIDE, formats.SIDE),
        unpack=formats.unpack_mnist,
        read_split=formats.read_mnist_split,
    ),
    "cifar10": Source(
        description="60,000 colour photographs of ten classes, 3×32×32",
        files={formats.ARCHIVE: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        samples={"train": 50_000, "test": 10_000},
        image=(3, 32, 32),
        unpack=formats.unpack_cifar,
        read_split=formats.read_cifar_split,
    ),
}


def cache() -> Path:
    """Return the folder with the fetched data sets: $LABKIT_DATA, or the user's cache folder."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen)
    return user_cache_path("allreduce-lab")


def folder(name: str) -> Path:
    """Return the folder of one data set in the cache, whether it exists or not."""
    return cache() / name


RECORD = "unpacked.json"  # written last: if it exists, the unpacked files are complete


def fetch(name: str) -> Path:
    """Fetch "mnist" or "cifar10" into the cache, check and unpack it; return its folder.

    Download the files that are missing, with a progress bar, and resume interrupted downloads. Files put into
    the folder by hand are accepted, too; all must have the SHA-256 of the originals. Processes that fetch the
    same data set take turns. If the cache already holds it, a read-only cache suffices.

    Raise FetchError, which says what to do, if a file cannot be downloaded; FormatError if a file is damaged.
    """
    source, place = SOURCES[name], folder(name)
    if _is_unpacked(place, source):
        return place
    place.mkdir(parents=True, exist_ok=True)
    waiting = f"Another process is fetching {name}; waiting for it …"
    with taking_turns(place / ".lock", waiting=waiting):
        if not _is_unpacked(place, source):  # another process may have unpacked it meanwhile
            (place / RECORD).unlink(missing_ok=True)
            for file in source.files:
                _ensure_original(name, file)
            _unpack(place, source)
    return place


def is_cached(name: str) -> bool:
    """Return whether the data set has been fetched; unlike `fetch`, do not check the files' contents."""
    return (folder(name) / RECORD).exists()


def _ensure_original(name: str, file: str) -> None:
    """Download an original file unless it is in the cache."""
    source, place = SOURCES[name], folder(name)
    expected, path = source.files[file], place / file
    reasons = []
    if path.exists():
        got = _sha256(path)
        if got == expected:
            return
        reasons.append(f"the file in the cache has SHA-256 {got}, expected {expected}")

    import requests  # noqa: PLC0415  (takes time and memory, and is rarely needed)

    from labkit.data.download import download  # noqa: PLC0415

    part = place / f"{file}.part"
    for mirror in source.mirrors:
        for _ in range(2 if part.exists() else 1):  # if resuming a damaged .part file fails, start again
            try:
                download(mirror + file, part)
            except requests.RequestException as error:
                reasons.append(f"{mirror}: {error}")
                break
            if (got := _sha256(part)) == expected:
                part.replace(path)
                return
            part.unlink()
            reasons.append(f"{mirror}: the downloaded file has SHA-256 {got}, expected {expected}")
    raise FetchError(_what_to_do(name, file, reasons))


def _what_to_do(name: str, file: str, reasons: list[str]) -> str:
    source = SOURCES[name]
    lines = [f"data set {name!r} is not in the cache, and {file} cannot be downloaded:"]
    lines += [f"  {reason}" for reason in reasons]
    lines += [
        f'Offline, use the embedded data set: load("digits", shape={source.image}), or --data digits.',
        f"Or put these files, still packed, into {folder(name)}:",
    ]
    lines += [f"  {source.mirrors[0]}{other}  SHA-256 {known}" for other, known in source.files.items()]
    return "\n".join(lines)


def _unpack(place: Path, source: Source) -> None:
    """Unpack the original files, check their format and the numbers of samples, and write the record."""
    files = source.unpack(place)
    for split, expected in source.samples.items():
        rows, labels = source.read_split(place, split)
        if len(labels) != expected:
            raise FormatError(rows[-1].path, 0, f"{expected} samples for {split} in total", str(len(labels)))
    unpacked = {file.name: _sha256(file) for file in files}
    with atomic_write(place / RECORD) as out:
        out.write(json.dumps({"from": dict(source.files), "unpacked": unpacked}, indent=2).encode() + b"\n")


def _is_unpacked(place: Path, source: Source) -> bool:
    """Return whether the unpacked files are unchanged and come from these originals."""
    try:
        record = json.loads((place / RECORD).read_text())
        return record["from"] == dict(source.files) and all(
            _sha256(place / file) == known for file, known in record["unpacked"].items()
        )
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
