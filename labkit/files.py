"""Write files so that each is complete or absent, even if the program is killed; lock files.

A file is written under another name in the same directory, flushed to the disk and then renamed. Renaming
replaces an old file in one step (POSIX). Each writer has a name of its own, and holds a lock on its file:
the next writer removes the files of killed writers, which it knows by their lock. The operating system gives
up the lock of a process that dies, also on NFS, where `flock` locks for all machines.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

UNFINISHED = ".labkit-part"
SHOWN = 40  # characters of a file's name in that of its unfinished file: names may have 255 bytes
KILLED_S = 2.0  # a killed process may take so long to end
POLL_S = 0.05


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing bytes; it appears at `path` when the block ends, unless the block raises.

    An OSError names the file, also if the disk is full.
    """
    part = None
    try:
        remove_unfinished(path.parent, path.name[:SHOWN])
        with _unfinished(path) as file:
            part = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)  # still locked, so nobody takes it for the file of a killed writer
    except BaseException as error:
        if part:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename or UNFINISHED).endswith(UNFINISHED):
            error.filename = str(path)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # and with it the new name
    finally:
        os.close(directory)


def remove_unfinished(directory: Path, name: str = "") -> None:
    """Remove the unfinished files whose writers have been killed, of files whose name begins with `name`."""
    for part in directory.glob(f".{glob.escape(name)}*{UNFINISHED}"):
        with suppress(OSError), part.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def kept_beside(path: Path) -> str:
    """Give a file a name that is free, and return that name."""
    names = (f"{path.stem}-old{number or ''}{path.suffix}" for number in (0, *range(2, 10**6)))
    place = next(place for name in names if not (place := path.with_name(name)).exists())
    path.rename(place)
    return place.name


@contextmanager
def locked(path: Path, wait_s: float = KILLED_S, waiting: str = "") -> Iterator[None]:
    """Hold a lock inside the block: the file `path`, which is there only meanwhile, or after a kill.

    A process that has to wait prints `waiting`, if given, on standard error. After `wait_s` seconds, raise
    BlockingIOError, which names the process that holds the lock. Where the file system has no locks, nothing
    is locked.
    """
    deadline = time.monotonic() + wait_s
    while True:
        with _lock_file(path) as file:
            try:
                if not _lock(file):
                    continue  # its former holder has just removed it
                if not file.writable():  # another user's, who was killed
                    path.unlink(missing_ok=True)
                    continue
            except BlockingIOError:
                if waiting:
                    print(waiting, file=sys.stderr)
                    waiting = ""
                if time.monotonic() > deadline:
                    file.seek(0)
                    holder = f"in use by {file.read() or 'another process'}"
                    raise BlockingIOError(errno.EAGAIN, holder, str(path)) from None
                time.sleep(POLL_S)
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _lock_file(path: Path) -> IO[str]:
    try:
        return path.open("a+")
    except PermissionError:
        if not path.exists():
            raise
        return path.open()  # another user's, in a folder that several share


def _unfinished(path: Path) -> BinaryIO:
    """Create and lock a file beside `path` that only this writer writes to."""
    while True:
        part = path.with_name(f".{path.name[:SHOWN]}.{secrets.token_hex(8)}{UNFINISHED}")
        file = part.open("xb")
        with suppress(BlockingIOError):
            if _lock(file):
                return file
        file.close()  # another writer has locked it before this one could, and removes it


def _lock(file: IO) -> bool:
    """Lock an open file; return whether it still has a name. Raise BlockingIOError if it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return True
    return os.fstat(file.fileno()).st_nlink > 0
