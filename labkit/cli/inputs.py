"""What the commands accept: types of options, and errors of input in one line with exit status 2."""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from labkit.files import check_input, destination, printable
from mpiwatch.launch import SettingError

MOST = 1_000_000_000  # nothing that the lab counts is larger
MOST_RANKS = 1024  # on one machine: a number with a digit too many must not exhaust its processes
MOST_SHOWN = 60  # characters of a wrong value in a message


class InputError(click.UsageError):
    """A file, folder or variable that the user gave cannot be used: exit status 2.

    The message is one line; or, with `has_rows`, a line and a row for each machine.
    """

    has_rows = False

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error without the command's usage: the user called the command correctly."""
        click.ClickException.show(self, file)


def shortened(value: object) -> str:
    """Return a wrong value as a message shows it."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def printable_rows(text: str) -> str:
    """Return a text whose lines a terminal can show."""
    return "\n".join(printable(line) for line in text.split("\n"))


@contextmanager
def one_line(*known: type[Exception], has_rows: bool = False) -> Iterator[None]:
    """Turn known errors into an InputError with their text. Any other keeps its traceback.

    Always known: SettingError, and an OSError that names a file. With `has_rows`, the text may have a row for
    each machine below its first line.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (SettingError, *known)):
            shown = printable_rows if has_rows else printable
            refusal = InputError(shown(str(error)) or type(error).__name__)
            refusal.has_rows = has_rows
            raise refusal from None
        if isinstance(error, OSError) and isinstance(error.filename, str) and error.errno != errno.EPIPE:
            raise InputError(f"{printable(error.filename)}: {error.strerror}") from None
        raise


class Whole(click.IntRange):
    """A whole number from `min` to `max`, by default the most that the lab counts."""

    def __init__(self, min: int = 1, max: int = MOST) -> None:
        super().__init__(min, max)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            expected = f"expected a whole number from {self.min} to {self.max}"
            self.fail(f"{expected}, got {shortened(value)}.", param, ctx)


class Finite(click.FloatRange):
    """A range of numbers that excludes NaN and infinity, which comparisons with a bound let through."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = super().convert(value, param, ctx)
            if math.isfinite(number):
                return number
        except click.BadParameter:
            pass
        has_bounds = self.min is not None or self.max is not None
        bounds = f" x with {self._describe_range()}" if has_bounds else ""
        self.fail(f"expected a finite number{bounds}, got {shortened(value)}.", param, ctx)


class NonEmptyPath(click.Path):
    """A path that is not empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("expected a path, got an empty string.", param, ctx)
        try:
            path = Path(os.fsdecode(super().convert(value, param, ctx)))
            self.check(path)
            return path
        except OSError as error:  # a folder that may not be searched, a name that is too long
            self.fail(f"{error.filename!r}: {error.strerror}.", param, ctx)

    def check(self, path: Path) -> None:
        """Raise OSError, which names a path, if this one cannot be used."""


class InputFolder(NonEmptyPath):
    """The path of a folder that can be read."""

    def check(self, path: Path) -> None:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "expected a folder", str(path))
        check_readable(path, os.R_OK | os.X_OK)


class InputFile(NonEmptyPath):
    """The path of a plain file that can be read, or of an open descriptor such as /dev/stdin."""

    def check(self, path: Path) -> None:
        check_input(path)
        check_readable(path, os.R_OK)


def check_readable(path: Path, mode: int) -> None:
    """Raise PermissionError, which names the path, unless this user has the access."""
    if not os.access(path, mode):
        raise PermissionError(errno.EACCES, "you may not read it", str(path))


class OutputFile(NonEmptyPath):
    """The path of a file to write: a plain one, whose folder exists, or a device such as /dev/null."""

    def check(self, path: Path) -> None:
        file = destination(path)
        if file is None:
            return
        if not file.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
        if not os.access(file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "you may not write to this folder", str(path.parent))


class OutputFolder(NonEmptyPath):
    """The path of a folder to write to, which is there or can be made with those above it."""

    def check(self, path: Path) -> None:
        if os.path.lexists(path) and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "expected a folder or nothing", str(path))
        there = path if path.is_dir() else next(above for above in path.absolute().parents if above.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "expected a folder", str(there))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "you may not write to this folder", str(there))
