"""What can be wrong with the files of a data set."""

from __future__ import annotations

from pathlib import Path


class FormatError(ValueError):
    """A file that does not keep to its format: names the file, the offset in bytes, expected and got."""

    def __init__(self, path: Path, offset: int, expected: str, got: str) -> None:
        super().__init__(f"{path.name}, offset {offset}: expected {expected}, got {got} ({path})")


class FetchError(OSError):
    """A data set that is not in the cache and cannot be brought there; says what to do instead."""
