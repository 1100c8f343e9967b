"""What the commands accept: types of options, and errors of input in one line with exit status 2."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from mpiwatch.launch import SettingError

MOST = 1_000_000_000  # nothing that the lab counts is larger
MOST_RANKS = 1024  # on one machine: a number with a digit too many must not exhaust its processes


class InputError(click.UsageError):
    """A file, folder or variable that the user gave cannot be used: one line, exit status 2."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error without the command's usage: the user called the command correctly."""
        click.ClickException.show(self, file)


@contextmanager
def one_line(*known: type[Exception]) -> Iterator[None]:
    """Turn known errors into an InputError with their text. Any other keeps its traceback.

    Always known: SettingError, and an OSError that names a file.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (SettingError, *known)):
            raise InputError(str(error) or type(error).__name__) from None
        if isinstance(error, OSError) and isinstance(error.filename, str) and error.errno != errno.EPIPE:
            raise InputError(f"{error.filename}: {error.strerror}") from None
        raise


class Whole(click.IntRange):
    """A whole number from `min` to `max`, by default the most that the lab counts."""

    def __init__(self, min: int = 1, max: int = MOST) -> None:
        super().__init__(min, max)


class Finite(click.FloatRange):
    """A range of numbers that excludes NaN and infinity, which comparisons with a bound let through."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, got {value}.", param, ctx)
        return number


class Place(click.Path):
    """A path that is not empty. With `writable_file`, a file can be written there: its folder exists."""

    def __init__(self, *, writable_file: bool = False, **options: Any) -> None:
        super().__init__(path_type=Path, dir_okay=options.pop("dir_okay", not writable_file), **options)
        self.writable_file = writable_file

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("expected a path, got an empty string.", param, ctx)
        path = super().convert(value, param, ctx)
        folder = os.path.dirname(os.path.abspath(value))
        if self.writable_file and not os.path.isdir(folder):
            self.fail(f"there is no folder {folder!r}.", param, ctx)
        if self.writable_file and not os.access(folder, os.W_OK):
            self.fail(f"you may not write to the folder {folder!r}.", param, ctx)
        return path
