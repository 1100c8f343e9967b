"""What a student has done so far: a small file, kept across restarts and shared by all notebooks.

It is `$LABKIT_PROGRESS`, or `progress.json` in the user's state folder. A damaged one is kept under
another name.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from labkit.files import atomic_write

FILE = "LABKIT_PROGRESS"
Record = dict[str, dict[str, Any]]  # by exercise: "state" ("tried" or "done") and "hints", how many are open


def path() -> Path:
    """Return the file's path."""
    chosen = os.environ.get(FILE)
    return Path(chosen) if chosen else user_state_path("allreduce-lab") / "progress.json"


def load() -> Record:
    """Return what is done; nothing if there is no file. A damaged one gets another name, which is printed."""
    try:
        content = json.loads(path().read_bytes())
        record = {str(name): dict(entry) for name, entry in content["exercises"].items()}
        for entry in record.values():
            if type(entry.get("state", "")) is not str or type(entry.get("hints", 0)) is not int:
                raise TypeError
    except OSError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        _set_aside()
        return {}
    return record


def _set_aside() -> None:
    """Give the damaged file a name that no other file has."""
    names = (path().with_name(f"{path().name}.damaged-{number}") for number in itertools.count(1))
    new = next(name for name in names if not os.path.lexists(name))
    with suppress(OSError):  # another process has done it, or the folder cannot be written to
        path().rename(new)
        print(
            f"{path()} is damaged: it is now {new.name}, and all exercises count as not done.",
            file=sys.stderr,
        )


def note(name: str, passed: bool) -> None:
    """Note that an exercise was checked. One that is done stays so. Without a writable file, do nothing."""
    with suppress(OSError), _changing() as record:
        entry = record.setdefault(name, {})
        entry["state"] = "done" if passed or entry.get("state") == "done" else "tried"


def open_hint(name: str, count: int) -> int:
    """Open one more of an exercise's hints; return how many of the `count` are open now."""
    opened = 1
    with suppress(OSError), _changing() as record:
        entry = record.setdefault(name, {"state": ""})
        opened = entry["hints"] = min(count, int(entry.get("hints", 0)) + 1)
    return opened


@contextmanager
def _changing() -> Iterator[Record]:
    """Change the record; other notebooks wait meanwhile."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with path().with_name(f".{path().name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = load()
        yield record
        with atomic_write(path()) as file:
            file.write(json.dumps({"exercises": record}, indent=1).encode() + b"\n")
