"""Bringing a data set into the cache: fetched, checked, unpacked, and never half there for others to see."""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.data.errors import FetchError, FormatError
from labkit.data.sources import SOURCES, Source, folder
from labkit.files import UNFINISHED, atomic_write

RECORD = "unpacked.json"  # written last: where it is, the unpacked files are whole
POLL_S = 0.1

Alive = Callable[[], None]


def fetch(name: str, alive: Alive = lambda: None) -> Path:
    """Bring the set "mnist" or "cifar10" into the cache, checked and unpacked; return its folder.

    Downloads what is not there, with a progress bar, and goes on where a broken download ended. A file put
    there by hand serves as well as a downloaded one: either must have the original's SHA-256. `alive` is
    called again and again meanwhile. Processes that fetch the same set take turns; a cache that holds
    it already may be read-only.

    A FetchError says what to do where the set cannot be had, a FormatError names file and offset.
    """
    source, place = SOURCES[name], folder(name)
    if _is_unpacked(place, source, alive):
        return place
    place.mkdir(parents=True, exist_ok=True)
    with _turn(place, alive):
        if not _is_unpacked(place, source, alive):  # another process may have done it meanwhile
            (place / RECORD).unlink(missing_ok=True)
            for file in source.files:
                _get(name, file, alive)
            _unpack(place, source, alive)
    return place


def is_cached(name: str) -> bool:
    """Return whether the set has been fetched. A look at names only: `fetch` looks into the files."""
    return (folder(name) / RECORD).exists()


def _get(name: str, file: str, alive: Alive) -> None:
    """Make sure that an original file is in the cache."""
    source, place = SOURCES[name], folder(name)
    expected, path = source.files[file], place / file
    reasons = []
    if path.exists():
        got = _sha256(path, alive)
        if got == expected:
            return
        reasons.append(f"the one in the cache has SHA-256 {got}")

    # Slow to import, large in memory, and rarely needed.
    import pooch  # noqa: PLC0415
    import requests  # noqa: PLC0415

    from labkit.data.download import Resuming  # noqa: PLC0415

    pooch.get_logger().setLevel("WARNING")
    for mirror in source.mirrors:
        part = place / f"{file}.part"
        goes = 2 if part.exists() else 1  # a beginning that was damaged on the disk must not end it all
        for _ in range(goes):
            store = pooch.create(path=place, base_url=mirror, registry={file: f"sha256:{expected}"})
            try:
                store.fetch(file, downloader=Resuming(part, alive))
                return
            except (requests.RequestException, ValueError) as error:
                reasons.append(f"{mirror}: {error}")
                if isinstance(error, requests.RequestException):
                    break
    raise FetchError(_what_to_do(name, file, reasons))


def _what_to_do(name: str, file: str, reasons: list[str]) -> str:
    source = SOURCES[name]
    lines = [f"the data set {name!r} is not in the cache, and {file} cannot be fetched:"]
    lines += [f"  {reason}" for reason in reasons]
    lines += [
        f'Off line, take the embedded set: load("digits", shape={source.image}), or --data digits.',
        f"Or put these files, as they are, into {folder(name)}:",
    ]
    lines += [f"  {source.mirrors[0]}{other}  SHA-256 {known}" for other, known in source.files.items()]
    return "\n".join(lines)


def _unpack(place: Path, source: Source, alive: Alive) -> None:
    """Unpack the original files, check that the format's and the set's rules are kept, and record it."""
    files = source.unpack(place)
    alive()
    for part, expected in source.samples.items():
        rows, labels = source.part(place, part)
        if len(labels) != expected:
            raise FormatError(rows[-1].path, 0, f"{expected} samples for {part} in all", str(len(labels)))
    unpacked = {file.name: _sha256(file, alive) for file in files}
    with atomic_write(place / RECORD) as out:
        out.write(json.dumps({"from": dict(source.files), "unpacked": unpacked}, indent=2).encode() + b"\n")


def _is_unpacked(place: Path, source: Source, alive: Alive) -> bool:
    """Return whether the unpacked files are those that were once unpacked from these originals."""
    try:
        record = json.loads((place / RECORD).read_text())
        return record["from"] == dict(source.files) and all(
            _sha256(place / file, alive) == known for file, known in record["unpacked"].items()
        )
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _sha256(path: Path, alive: Alive) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            alive()
    return digest.hexdigest()


@contextmanager
def _turn(place: Path, alive: Alive) -> Iterator[None]:
    """Wait until no other process on this machine fetches into the folder; a killed one ends its turn."""
    with (place / ".lock").open("w") as lock:
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for left in (*place.glob("tmp*"), *place.glob(f".*{UNFINISHED}")):
                    left.unlink()  # by a killed process: pooch's and ours; a download's beginning is kept
                break
            except BlockingIOError:
                if not told:
                    sys.stderr.write(f"Another process fetches {place.name}; waiting for it …\n")
                    sys.stderr.flush()
                told = True
                alive()
                time.sleep(POLL_S)
            except OSError:  # a file system without locks; the ranks of a job take turns anyway
                break
        yield
