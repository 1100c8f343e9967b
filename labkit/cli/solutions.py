"""`labkit solutions`: the notebooks with the solutions of all exercises, for instructors."""

# ruff: noqa: PLC0415 (import inside a function: nbformat loads only where the command runs)

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from labkit.cli.inputs import Place
from labkit.cli.release import copies_in, known_exercises
from labkit.files import atomic_write


@click.command
@click.argument("folder", type=Place())
def command(folder: Path) -> None:
    """Copy the notebooks to FOLDER for instructors: the solution in place of each stub, and no outputs.

    `exercises.md` lists the exercises, with minutes, points and the mistakes that the checks name.
    """
    from labkit.cli.course import copies

    def change(notebook: Any) -> None:
        copies.solve(notebook, exercises)

    exercises = known_exercises()
    with copies_in(folder, change) as (part, names):
        text = copies.markdown(exercises.values(), {name[:2]: name for name in names})
        with atomic_write(part / "exercises.md") as file:
            file.write(text.encode())
    click.echo(f"{folder}: {len(names)} notebooks with solutions; do not hand them out")
