"""Write a file whole, and never replace or remove anything but a plain file.

A link stays: its file is replaced. A device such as /dev/null and an open descriptor such as /dev/stdout are
written to. A folder, a named pipe, a socket or a disk is an error.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

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
    raise OSError(errno.EINVAL, "expected a plain file to write to, found something else", str(path))


def check_writable(path: Path) -> None:
    """Raise OSError, which names a path, unless a file can be written to `path`."""
    if not path.name:  # also of an empty text
        raise OSError(errno.EISDIR, "expected a file", str(path))
    file = destination(path)
    if file is not None and not os.access(file.parent, os.W_OK):
        code = errno.EACCES if file.parent.is_dir() else errno.ENOENT
        raise OSError(code, os.strerror(code), str(file.parent))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that no reader sees half of it; leave nothing behind after an OSError."""
    file = destination(path)
    if file is None:
        number = _descriptor(path)
        opened = os.dup(number) if number is not None else os.open(path, os.O_WRONLY | os.O_NOCTTY)
        with open(opened, "w") as out:
            out.write(text)
        return
    part = file.with_name(f".{file.name[:40]}.{os.getpid()}.part")
    try:
        part.write_text(text)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove the plain file that `path` leads to, if there is one."""
    file = destination(path)
    if file is not None:
        file.unlink(missing_ok=True)


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
