"""`labkit release` and `labkit solutions`: copies of the notebooks for students, nbgrader and instructors."""

# ruff: noqa: PLC0415 (import inside a function: nbformat and the exercises load only where the command runs)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from labkit.cli.inputs import InputError, Place, one_line
from labkit.files import atomic_write

CONFIG = '''\
"""Settings of nbgrader for this course. Written by `labkit release --nbgrader`."""

from labkit.cli.course import grading

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "allreduce-lab"
c.GenerateAssignment.preprocessors = grading.GENERATE
c.Autograde.autograde_preprocessors = grading.AUTOGRADE
# Files for `nbgrader zip_collect`: STUDENT_NOTEBOOK.ipynb, such as ada_01_backprop_by_hand.ipynb.
c.FileNameCollectorPlugin.named_regexp = r"(.*/)?(?P<student_id>[^_/]+)_(?P<file_id>.+)"
'''


@click.command
@click.argument("folder", type=Place())
@click.option("--nbgrader", is_flag=True, help="Make FOLDER an nbgrader course, one assignment a notebook.")
def command(folder: Path, nbgrader: bool) -> None:
    """Copy the notebooks to FOLDER for students: stubs and no outputs.

    Documents that the notebooks link to are copied, too. With --nbgrader, the copies are the sources of
    assignments, with points: see docs/grading.md.
    """
    from labkit.cli.course import copies

    def change(notebook: Any) -> None:
        copies.release(notebook, exercises)
        copies.add_nbgrader(notebook, exercises)

    exercises = known_exercises()
    with copies_in(folder / "source" if nbgrader else folder, change, of_their_own=nbgrader) as (_, names):
        if nbgrader:
            with atomic_write(folder / "nbgrader_config.py") as file:
                file.write(CONFIG.encode())
    if nbgrader:
        click.echo(f"{folder}: a course with {len(names)} assignments. Next, in this folder:")
        click.echo("".join(f"    nbgrader generate_assignment {name}\n" for name in names), nl=False)
    else:
        click.echo(f"{folder}: {len(names)} notebooks for students")


@click.command
@click.argument("folder", type=Place())
def solutions(folder: Path) -> None:
    """Copy the notebooks to FOLDER for instructors: the solution in place of each stub, and no outputs.

    `exercises.md` lists the exercises, with minutes, points and the mistakes that the checks name.
    """
    from labkit.cli.course import copies

    def change(notebook: Any) -> None:
        copies.solve(notebook, exercises)

    exercises = known_exercises()
    with copies_in(folder, change) as (part, names):
        text = copies.markdown(exercises.values(), {name.partition("_")[0]: name for name in names})
        with atomic_write(part / "exercises.md") as file:
            file.write(text.encode())
    click.echo(f"{folder}: {len(names)} notebooks with solutions; do not hand them out")


def known_exercises() -> dict[str, Any]:
    """Return the exercises of the catalogue by name."""
    from labkit.exercises import catalogue

    return catalogue.exercises()


@contextmanager
def copies_in(folder: Path, change: Any, *, of_their_own: bool = False) -> Iterator[tuple[Path, list[str]]]:
    """Write a changed copy of each notebook to a new or empty folder, which is complete or stays as it was.

    Yield the folder that holds the copies until the block ends, for further files, and the notebooks' names.
    """
    from labkit.cli.course import copies, folders

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder; choose another one.")
    originals = sorted(folders.ORIGINALS.glob("*.ipynb"))
    with one_line(copies.CopyError), folders.whole(folder) as part:
        folders.write(originals, part, change, of_their_own=of_their_own)
        yield part, [path.stem for path in originals]
