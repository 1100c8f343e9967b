"""A student's own copies of the notebooks: made once, never overwritten where the student has changed them.

The folder of the copies holds `.origins.json`: for each file, the fingerprint of the version that the copy
was made from, and a hash of the copy as it was made. A fingerprint covers what an author writes (cells, tags,
attachments), not what a run produces, so a copy that was only run counts as unchanged: a newer version takes
its place, and the copy with its outputs is kept under another name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from labkit.cli.course import folders
from labkit.files import atomic_write

RECORD = ".origins.json"
WAIT_S, POLL_S = 60.0, 0.05  # for another process that updates the same copies, which takes a second


def update(originals: Path, copies: Path) -> list[str]:
    """Copy the notebooks that are new, and the newer versions of those that the student has not changed.

    The documents that they link to are copied alike. Return lines that say what was done, and which changed
    notebooks have a newer version.
    """
    copies.mkdir(exist_ok=True)
    files = folders.contents(sorted(originals.glob("*.ipynb")), lambda notebook: None)
    with _alone(copies):
        return _update(files, copies)


def _update(files: dict[Path, bytes], copies: Path) -> list[str]:
    record = _read(copies / RECORD)
    origins: dict[str, str] = {}
    made, refreshed, old, kept = [], [], [], []
    for place, content in sorted(files.items()):
        name, copy, newest = place.as_posix(), copies / place, fingerprint(content)
        # A copy without an origin (the record is lost): assume the newest, and say nothing.
        origin, _, bytes_made = record.get(name, newest).partition(" ")
        origins[name] = f"{newest} {_hash(content)}"
        if not copy.exists():
            made.append(name)
        elif (mine := fingerprint(now := copy.read_bytes())) == newest:
            if name in record and origin == newest:
                origins[name] = record[name]
            continue
        elif mine == origin:
            refreshed.append(name)
            if _hash(now) != bytes_made:
                old.append(_kept_beside(copy))
        else:
            origins[name] = record.get(name, newest)
            if origin != newest:
                kept.append(
                    f"{copy} is kept because you have changed it, but there is a newer version. "
                    f"For the new version, rename your copy and start again."
                )
            continue
        copy.parent.mkdir(exist_ok=True)
        with atomic_write(copy) as file:
            file.write(content)
    if origins != record:
        with atomic_write(copies / RECORD) as file:
            file.write(json.dumps(origins, indent=1).encode())
    lines = []
    if made:
        new = "your own copies of the notebooks" if len(made) == len(origins) else f"new: {', '.join(made)}"
        lines.append(f"{copies}: {new}")
    if refreshed:
        lines.append(f"{copies}: replaced by newer versions: {', '.join(refreshed)}")
    if old:
        lines.append(f"{copies}: your runs of the older versions are in {', '.join(old)}")
    return lines + kept


def _kept_beside(copy: Path) -> str:
    """Give a copy a name that is free, and return that name."""
    names = (
        f"{copy.stem}-old{number or ''}{copy.suffix}" for number in itertools.chain([0], itertools.count(2))
    )
    place = next(place for name in names if not (place := copy.with_name(name)).exists())
    copy.rename(place)
    return place.name


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process updates these copies."""
    descriptor = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + WAIT_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, "another process is updating it", str(folder)) from None
                time.sleep(POLL_S)
                continue
            except OSError:
                pass  # some network file systems have no locks for folders
            break
        yield
    finally:
        os.close(descriptor)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fingerprint(content: bytes) -> str:
    """Return a hash of what an author writes in a notebook; of all bytes if they are not a notebook."""
    try:
        cells = [
            [
                cell["cell_type"],
                "".join(cell["source"]),
                cell["metadata"].get("tags", []),
                cell.get("attachments", {}),
            ]
            for cell in json.loads(content)["cells"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _hash(content)
    return _hash(json.dumps(cells, sort_keys=True).encode())


def _read(path: Path) -> dict[str, str]:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    is_record = isinstance(record, dict) and all(isinstance(origin, str) for origin in record.values())
    return record if is_record else {}
