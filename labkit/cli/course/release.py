"""`labkit release`: students' copies of the notebooks, or a course for nbgrader."""

# ruff: noqa: PLC0415 (import inside a function: nbformat and the exercises load only where the command runs)

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

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
@click.argument("folder", type=click.Path(path_type=Path))
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
    target = folder / "source" if nbgrader else folder
    names = write_copies(target, change, of_their_own=nbgrader)
    if nbgrader:
        with atomic_write(folder / "nbgrader_config.py") as file:
            file.write(CONFIG.encode())
        click.echo(f"{folder}: a course with {len(names)} assignments. Next, in this folder:")
        click.echo("".join(f"    nbgrader generate_assignment {name}\n" for name in names), nl=False)
    else:
        click.echo(f"{folder}: {len(names)} notebooks for students")


def known_exercises() -> dict[str, Any]:
    """Return the exercises of the catalogue by name."""
    from labkit.exercises import catalogue

    return catalogue.exercises()


def write_copies(target: Path, change: Any, *, of_their_own: bool = False) -> list[str]:
    """Write a changed copy of each notebook to a new or empty folder, and return the notebooks' names."""
    from labkit.cli.course import copies, folders

    originals = sorted(folders.ORIGINALS.glob("*.ipynb"))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise click.ClickException(f"{target} exists and is not an empty folder; choose another one.")
    try:
        folders.write(originals, target, change, of_their_own=of_their_own)
    except copies.CopyError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot write the copies: {error}") from None
    return [path.stem for path in originals]
