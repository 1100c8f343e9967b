"""Files that are whole or not there at all, whenever the program is killed.

A file is written under another name in the same directory, flushed to the disk and then renamed: renaming
replaces the old file in one step (POSIX).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".labkit-part"


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write bytes to; it appears at `path` when the block ends, not at all if it raises."""
    part = path.with_name(f".{path.name}{UNFINISHED}")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Put the new name itself on the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
