"""The directory of a run's files, each of which is whole or not there at all (`labkit.files.whole`).

What a killed run left under a file's unfinished name is removed by the next one.
"""

from __future__ import annotations

from pathlib import Path

from labkit.files import UNFINISHED, atomic_write

__all__ = ["atomic_write", "prepare"]


def prepare(directory: Path) -> None:
    """Make a directory to write to, and remove what a killed run left in it.

    An OSError if it cannot be made or written to: better before a long run than after it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for part in directory.glob(f".*{UNFINISHED}"):
        part.unlink()
    probe = directory / f".probe{UNFINISHED}"
    probe.touch()
    probe.unlink()
