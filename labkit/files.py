"""Write files so that each is complete or absent, even if the program is killed; lock files.

A file is written under another name in the same directory, flushed to the disk and then renamed. Renaming
replaces an old file in one step (POSIX). Each writer has a name of its own, and holds a lock on its file:
the next writer removes the files of killed writers, which it knows by their lock. The operating system gives
up the lock of a process that dies, also on NFS, where `flock` locks for all machines. This lock is that of
the file itself; filelock, behind `locked`, locks a file of its own beside what it protects.

Only a plain file is ever replaced or removed. A link stays: its file is replaced. A device such as /dev/null
and an open descriptor such as /dev/stdout are written to. A folder, a named pipe, a socket or a disk is an
error. `mpiwatch/output.py` has the same rule, because mpiwatch knows nothing of the lab.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import io
import os
import re
import secrets
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from filelock import FileLock

UNFINISHED = ".labkit-part"
SHOWN = 40  # characters of a file's name in that of its unfinished file: names may have 255 bytes
KILLED_S = 2.0  # a killed process may take so long to end
POLL_S = 0.05
NO_LOCKS = errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK  # of a file system without locks
MOST_LINKS = 40  # that one path may lead through, as on Linux


def destination(path: Path) -> Path | None:
    """Return the plain file that output to `path` replaces or makes, with its links followed.

    Return None if the output goes into a device or an open descriptor, which stays. Raise OSError, which
    names the path, for anything else.
    """
    if _descriptor(path) is not None:
        return None
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG  # none yet: one is made, also where a link leads to nothing
    if stat.S_ISREG(mode):
        return Path(os.path.realpath(path))
    if stat.S_ISCHR(mode):
        return None
    raise OSError(errno.EINVAL, f"expected a plain file to write to, found a {_kind(mode)}", str(path))


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing bytes; it appears at `path` when the block ends, unless the block raises.

    What goes into a device or an open descriptor is written there when the block ends. An OSError names the
    file, also if the disk is full; raise it before the block if `path` is something that output must not
    replace.
    """
    target = destination(path)
    if target is None:
        content = io.BytesIO()
        yield content
        _write_in_place(path, content.getvalue())
        return
    part = None
    try:
        remove_unfinished(target.parent, target.name[:SHOWN])
        with _unfinished(target) as file:
            part = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
            with suppress(FileNotFoundError):  # who may read the file before may read the new one
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            part.replace(target)  # still locked, so nobody takes it for the file of a killed writer
    except BaseException as error:
        if part:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename or UNFINISHED).endswith(UNFINISHED):
            error.filename = str(path)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # and with it the new name
    finally:
        os.close(directory)


def read_input(path: Path) -> bytes:
    """Return the content of a plain file, or what an open descriptor such as /dev/stdin yields.

    Raise OSError, which names the path, for anything else: a named pipe may never get a writer, and a device
    may never end.
    """
    check_input(path)
    return path.read_bytes()


def check_input(path: Path) -> None:
    """Raise OSError, which names the path, unless it is a plain file or a descriptor open for reading."""
    mode, number = os.stat(path).st_mode, _descriptor(path)
    is_readable = number is not None and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
    if not stat.S_ISREG(mode) and not is_readable:
        raise OSError(errno.EINVAL, f"expected a plain file, found a {_kind(mode)}", str(path))


KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "disk",
}


def _kind(mode: int) -> str:
    return KINDS.get(stat.S_IFMT(mode), "file of another kind")


def _descriptor(path: Path) -> int | None:
    """Return the open descriptor of this process that a path such as /dev/stdout names, else None."""
    place = os.path.abspath(path)
    of_this_process = rf"{os.path.realpath('/proc/self')}(?:/task/\d+)?/fd/(\d+)|/dev/fd/(\d+)"
    for _ in range(MOST_LINKS):
        place = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
        match = re.fullmatch(of_this_process, place)
        if match:
            return int(match[1] or match[2])
        if not os.path.islink(place):
            return None
        place = os.path.join(os.path.dirname(place), os.readlink(place))
    return None


def _write_in_place(path: Path, content: bytes) -> None:
    """Write to a device or an open descriptor. Raise OSError, which names the path."""
    number = _descriptor(path)
    try:
        file = os.dup(number) if number is not None else os.open(path, os.O_WRONLY | os.O_NOCTTY)
        with open(file, "wb") as out:
            out.write(content)
    except OSError as error:
        error.filename = str(path)
        raise


def remove_unfinished(directory: Path, name: str = "") -> None:
    """Remove the unfinished files whose writers have been killed, of files whose name begins with `name`."""
    for part in directory.glob(f".{glob.escape(name)}*{UNFINISHED}"):
        with suppress(OSError), open(part, "r+b", opener=_open_plain) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                continue
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def kept_beside(path: Path) -> str:
    """Give a file a name that is free, and return that name."""
    names = (f"{path.stem}-old{number or ''}{path.suffix}" for number in (0, *range(2, 10**6)))
    free = next(name for name in names if not os.path.lexists(path.with_name(name)))
    path.rename(path.with_name(free))
    return free


@contextmanager
def locked(path: Path, wait_s: float = KILLED_S, waiting: str = "") -> Iterator[None]:
    """Hold a lock inside the block: the file `path`, which is there only meanwhile, or after a kill.

    Raise OSError, which names the path, if anything but a plain file is there: it stays. A process that has
    to wait prints `waiting`, if given, on standard error. After `wait_s` seconds, raise BlockingIOError. It
    names the process that holds the lock. Where the file system has no locks, nothing is locked.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415  (takes time, and `labkit --help` locks nothing)

    if path.exists() and not path.is_file():
        kind = _kind(path.stat().st_mode)
        raise OSError(errno.EINVAL, f"expected a lock file or nothing, found a {kind}", str(path))
    # Other users may take the lock of a process that was killed. The lock is `flock`, or none: a file that
    # stands for a lock would outlive a process that is killed.
    lock = FileLock(path, mode=0o666, poll_interval=POLL_S, fallback_to_soft=False)
    has_locks = True
    try:
        _acquire(lock, wait_s, waiting)
    except Timeout:
        holder = ""
        with suppress(OSError):
            holder = path.read_text()
        raise BlockingIOError(errno.EAGAIN, f"in use by {holder or 'another process'}", str(path)) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        has_locks = False
    try:
        if has_locks:
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        if has_locks:
            path.unlink(missing_ok=True)  # a process that waits for this file then makes another one
            lock.release()


def _acquire(lock: FileLock, wait_s: float, waiting: str) -> None:
    """Take a lock within `wait_s` seconds; say so if it has to wait. Raise Timeout."""
    from filelock import Timeout  # noqa: PLC0415

    if waiting:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(waiting, file=sys.stderr)
        else:
            return
    lock.acquire(timeout=wait_s)


def _open_plain(path: str, flags: int) -> int:
    """Open a file, but no link, and wait for nobody at a named pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


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


def printable(name: str) -> str:
    """Return a name in one line that a terminal can show: a file's may hold line breaks and control codes."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
