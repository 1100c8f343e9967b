"""Write files so that each is complete or absent, even if the program is killed.

A file is written under another name in the same directory, flushed to the disk and then renamed. Renaming
replaces an old file in one step (POSIX).
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
    """Open a file for writing bytes; it appears at `path` when the block ends, unless the block raises.

    An OSError names the file, also if the disk is full.
    """
    part = path.with_name(f".{path.name}{UNFINISHED}")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Flush the directory, and with it the new name, to the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
