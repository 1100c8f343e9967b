"""Errors in fetching and reading data sets."""

from __future__ import annotations

from pathlib import Path


class FormatError(ValueError):
    """A file violates its format; the message has file, offset in bytes, what was expected and got."""

    def __init__(self, path: Path, offset: int, expected: str, got: str) -> None:
        super().__init__(f"{path.name}, offset {offset}: expected {expected}, got {got} ({path})")


class FetchError(OSError):
    """A data set is not in the cache and cannot be downloaded; the message says what to do instead."""
