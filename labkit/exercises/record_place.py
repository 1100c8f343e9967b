"""Which file holds what a student has done: one in each folder of notebooks, so two folders do not mix."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from platformdirs import user_state_path

from labkit.checks.exercise import ORIGINALS
from labkit.files import atomic_write, locked, read_input

FILE = "LABKIT_PROGRESS"  # environment variable with the path of another file
NAME = "progress.json"
COPIES = "my-notebooks"  # a student's own, in the folder that `labkit lab` starts in
LOCK_S = 20.0  # for another notebook that copies the account's file, which takes milliseconds


def path(folder: Path | None = None) -> Path:
    """Return the path of the file for a folder, by default the current one.

    It is `$LABKIT_PROGRESS` if that is set, else `progress.json` beside the notebooks. Where there are none,
    or where this user may not write, it is the account's.
    """
    chosen = os.environ.get(FILE)
    if chosen:
        return Path(chosen)
    notebooks = folder_of_notebooks((folder or Path()).absolute())
    if notebooks is None or not os.access(notebooks, os.W_OK):
        return account_path()
    return notebooks / NAME


def account_path() -> Path:
    """Return the path of the account's file, in which all folders were kept before."""
    return user_state_path("allreduce-lab") / NAME


def folder_of_notebooks(folder: Path) -> Path | None:
    """Return the folder with the lab's notebooks: this one, or its `my-notebooks`; None if neither has any.

    An assignment of nbgrader is a folder of its own for each notebook. These belong to the folder above.
    """
    if f"{folder.name}.ipynb" in notebook_names() and (folder / f"{folder.name}.ipynb").is_file():
        return folder_of_notebooks(folder.parent) or folder.parent
    for candidate in (folder, folder / COPIES):
        if any((candidate / name).is_file() for name in notebook_names()):
            return candidate
    return None


@cache
def notebook_names() -> frozenset[str]:
    """Return the names of the lab's notebooks."""
    return frozenset(original.name for original in ORIGINALS.glob("*.ipynb"))


def take_over(target: Path) -> None:
    """Copy the account's file to a folder's new one, once for all folders, and say so."""
    old = account_path()  # it stays, for older versions of the lab
    note = old.with_name(f"{NAME}.copied")  # names the folder's file
    if os.environ.get(FILE) or target == old or target.exists() or note.exists() or not old.exists():
        return
    with suppress(OSError), locked(old.with_name(f".{NAME}.lock"), LOCK_S):
        if note.exists():
            return
        with atomic_write(target) as file:
            file.write(read_input(old))
        with atomic_write(note) as file:
            file.write(f"{target}\n".encode())
        text = f"Your answers are now kept in the folder of the notebooks: {old} was copied to {target}."
        print(text, file=sys.stderr)
