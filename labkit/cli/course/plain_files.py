"""What students hand in is plain files and folders.

Links, which lead to other people's files, and pipes are refused.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

Ignored = Callable[[str, list[str]], list[str]]  # as `shutil.copytree` takes it


class NotPlain(Exception):
    """Something in a folder is neither a plain file nor a folder."""


def not_plain(folder: Path) -> Iterator[Path]:
    """Yield what in a folder is neither a plain file nor a folder; the folder itself if it is a link.

    Of folders in folders that are too deep for a path of the system, yield the outermost.
    """
    if folder.is_symlink() or not folder.is_dir():
        yield folder
        return
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(at, name)
            try:
                mode = path.lstat().st_mode
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    yield folder / path.relative_to(folder).parts[0]
                continue  # this user cannot read it
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                yield path


def shared_files(submitted: Path) -> dict[tuple[int, int], list[Path]]:
    """Return the files that several students have handed in, which hard links make, by device and inode.

    Each has its paths: first that of the student whose account owns the file; if there is none, the one whose
    folder has not changed for the longest time, since a link changes the folder that it is made in.
    """
    paths: dict[tuple[int, int], list[Path]] = {}
    for at, _, files in os.walk(submitted):
        for name in files:
            path = Path(at, name)
            try:
                about = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode) and about.st_nlink > 1:
                paths.setdefault((about.st_dev, about.st_ino), []).append(path)

    def student(path: Path) -> str:
        return path.relative_to(submitted).parts[0]

    def precedence(path: Path) -> tuple[bool, int, Path]:
        try:
            is_owner = path.owner() == student(path)
        except KeyError:
            is_owner = False
        return not is_owner, path.parent.stat().st_ctime_ns, path

    return {
        file: sorted(its_paths, key=precedence)
        for file, its_paths in paths.items()
        if len({student(path) for path in its_paths}) > 1
    }


def copy_plain(source: Path, target: Path, ignored: Ignored) -> None:
    """Copy a folder of plain files, whole or not at all. Raise NotPlain if it holds anything else.

    The folder may be its student's, who can change it meanwhile: what has been opened is looked at, and
    copied. A file must have one name and the folder's owner, since a second name may be that of another
    user's file.
    """
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        _copy(source, part, ignored)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _copy(source: Path, part: Path, ignored: Ignored) -> None:
    owner = source.lstat().st_uid
    is_empty = True
    for at, folders, files, descriptor in os.fwalk(source, follow_symlinks=False):
        is_empty = False
        left_out = set(ignored(at, [*folders, *files]))
        folders[:] = [name for name in folders if name not in left_out]
        place = part / os.path.relpath(at, source)
        place.mkdir(parents=True)
        for name in folders:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=descriptor).st_mode):
                raise NotPlain(f"{Path(at, name)} is a link")
        for name in files:
            if name not in left_out:
                _copy_file(Path(at, name), descriptor, place / name, owner)
    if is_empty:
        raise NotPlain(f"{source} is no folder")


def _copy_file(path: Path, folder: int, copy: Path, owner: int) -> None:
    """Copy a file of an open folder."""
    try:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        raise NotPlain(f"{path} is a link, or cannot be read ({error.strerror})") from None
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise NotPlain(f"{path} is no file")
        if about.st_nlink != 1 or about.st_uid != owner:
            raise NotPlain(f"{path} is also another user's, or has a second name")
        with copy.open("xb") as new:
            shutil.copyfileobj(file, new)
    os.utime(copy, ns=(about.st_atime_ns, about.st_mtime_ns))
