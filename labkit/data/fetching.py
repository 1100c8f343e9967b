"""The large data sets: their sources, the cache folder, and what is in it.

Only files with the SHA-256 of the originals are unpacked, so nothing else checks their contents.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from labkit.files import atomic_write, locked

FETCH_S = 3600.0  # for another process that downloads the same data set
TIMEOUTS_S = (10, 30)  # for the connection; for the next bytes
UNFINISHED = ".unfinished"  # the folder of a download
CACHE = "LABKIT_DATA"  # environment variable with the path of another cache folder
SPLITS = "train", "test"
Block = tuple[np.ndarray, np.ndarray]  # pixels (k, channels·height·width) and labels (k,), uint8


class FetchError(OSError):
    """A data set is not in the cache and cannot be downloaded; the message says what to do instead."""


class DownloadError(Exception):
    """An address does not deliver a file."""


@dataclass(frozen=True)
class Source:
    """A data set that has to be fetched.

    `files` maps file names to the SHA-256 of the originals. Each address in `mirrors` holds all files; the
    first is tried first. `image` is (channels, height, width). `blocks` yields the samples of a split from
    the originals in a folder, some at a time.
    """

    description: str
    files: Mapping[str, str]
    mirrors: tuple[str, ...]
    image: tuple[int, int, int]
    blocks: Callable[[Path, str], Iterator[Block]]


def mnist_blocks(folder: Path, split: str) -> Iterator[Block]:
    """Read two gzipped IDX files: a magic number, the size of each dimension (4 bytes each), the values."""
    prefix = folder / {"train": "train", "test": "t10k"}[split]
    with (
        gzip.open(f"{prefix}-images-idx3-ubyte.gz") as images,
        gzip.open(f"{prefix}-labels-idx1-ubyte.gz") as labels,
    ):
        images.read(16)
        labels.read(8)
        while True:
            pixels = images.read(1000 * 28 * 28)
            if not pixels:
                break
            rows = np.frombuffer(pixels, np.uint8).reshape(-1, 28 * 28)
            yield rows, np.frombuffer(labels.read(1000), np.uint8)


def cifar10_blocks(folder: Path, split: str) -> Iterator[Block]:
    """Read the files of a gzipped tar archive; each row of them is a label and the image's 3,072 values."""
    names = ["test_batch"] if split == "test" else [f"data_batch_{k}" for k in range(1, 6)]
    with tarfile.open(folder / "cifar-10-binary.tar.gz") as archive:
        for name in names:
            member = archive.extractfile(f"cifar-10-batches-bin/{name}.bin")
            assert member is not None
            rows = np.frombuffer(member.read(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
            yield rows[:, 1:], rows[:, 0]


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
        image=(1, 28, 28),
        blocks=mnist_blocks,
    ),
    "cifar10": Source(
        description="60,000 colour photographs of ten classes, 3×32×32",
        files={"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        image=(3, 32, 32),
        blocks=cifar10_blocks,
    ),
}


def cache() -> Path:
    """Return the folder with the fetched data sets: $LABKIT_DATA, or the user's cache folder."""
    chosen = os.environ.get(CACHE)
    if chosen:
        return Path(chosen)
    return user_cache_path("allreduce-lab")


def folder(name: str) -> Path:
    """Return the folder of one data set in the cache, whether it exists or not."""
    return cache() / name


RECORD = "splits.json"  # written last: if it exists, the unpacked files are complete


def fetch(name: str) -> Path:
    """Fetch "mnist" or "cifar10" into the cache, check and unpack it; return its folder.

    Download the files that are missing, with a progress bar. Files put into the folder by hand are accepted,
    too; all must have the SHA-256 of the originals. Processes that fetch the
    same data set take turns. If the cache already holds it, a read-only cache suffices.

    Raise FetchError, which says what to do, if a file cannot be downloaded.
    """
    source, place = SOURCES[name], folder(name)
    if _is_unpacked(place, source):
        return place
    place.mkdir(parents=True, exist_ok=True)
    waiting = f"Another process is fetching {name}; waiting for it …"
    with locked(place / ".lock", FETCH_S, waiting):
        if not _is_unpacked(place, source):  # another process may have unpacked it meanwhile
            (place / RECORD).unlink(missing_ok=True)
            for file in source.files:
                _ensure_original(name, file)
            _unpack(name)
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

    for mirror in source.mirrors:
        try:
            _download(mirror + file, expected, path)
        except DownloadError as error:
            reasons.append(f"{mirror}: {error}")
        else:
            return
    raise FetchError(_what_to_do(name, file, reasons))


def _download(url: str, sha256: str, path: Path) -> None:
    """Download a file, with a progress bar; it appears at `path` if it is whole and has this SHA-256.

    A download begins in a folder of its own, which the next one removes if this process is killed.
    """
    import pooch  # noqa: PLC0415  (takes time and memory, and is rarely needed)
    import requests  # noqa: PLC0415

    pooch.get_logger().setLevel("ERROR")
    unfinished = path.with_name(UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    downloader = pooch.HTTPDownloader(progressbar=True, timeout=TIMEOUTS_S)
    try:
        pooch.retrieve(url, f"sha256:{sha256}", path.name, unfinished, downloader=downloader)
        (unfinished / path.name).replace(path)
    except requests.HTTPError as error:
        raise DownloadError(str(error)) from None
    except requests.exceptions.ChunkedEncodingError:
        raise DownloadError("the connection ended too early") from None
    except requests.ConnectionError:
        raise DownloadError("no connection") from None
    except (requests.RequestException, ValueError) as error:  # pooch's error for a wrong checksum
        raise DownloadError(str(error)) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


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


def split_files(name: str, split: str) -> tuple[Path, Path]:
    """Return the files with the images and with the labels of a split, one after the other, as bytes."""
    return folder(name) / f"{split}.images", folder(name) / f"{split}.labels"


def _unpack(name: str) -> None:
    """Write the files of each split and, last, the record of their checksums."""
    source, unpacked = SOURCES[name], dict[str, str]()
    for split in SPLITS:
        paths = split_files(name, split)
        with atomic_write(paths[0]) as images, atomic_write(paths[1]) as labels:
            for pixels, numbers in source.blocks(folder(name), split):
                images.write(pixels.tobytes())
                labels.write(numbers.tobytes())
        unpacked |= {path.name: _sha256(path) for path in paths}
    with atomic_write(folder(name) / RECORD) as out:
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
