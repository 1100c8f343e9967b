"""`labkit solutions`: the notebooks with the solutions of all exercises, for instructors."""

# ruff: noqa: PLC0415 (import inside a function: nbformat loads only where the command runs)

from __future__ import annotations

from pathlib import Path

import click

from labkit.cli.course.release import known_exercises, write_copies


@click.command
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Copy the notebooks to FOLDER for instructors: the solution in place of each stub, and no outputs."""
    from labkit.cli.course import copies

    exercises = known_exercises()
    names = write_copies(folder, lambda notebook: copies.solve(notebook, exercises))
    click.echo(f"{folder}: {len(names)} notebooks with solutions; do not hand them out")
