"""`labkit release` and `labkit solutions`: copies of the notebooks for students, nbgrader and instructors."""

# ruff: noqa: PLC0415 (import inside a function: nbformat and the exercises load only where the command runs)

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from labkit.cli.inputs import InputError, OutputFolder, one_line
from labkit.text import counted

Exercises = dict[str, Any]

CONFIG = '''\
"""Settings of nbgrader for this course. Written by `labkit release --nbgrader`."""

from labkit.cli.course import grading

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "allreduce-lab"
grading.configure(c)
# Files for `nbgrader zip_collect`: STUDENT_NOTEBOOK.ipynb, such as ada_01_backprop_by_hand.ipynb.
c.FileNameCollectorPlugin.named_regexp = r"(.*/)?(?P<student_id>[^_/\\n]+)_(?P<file_id>.+)"
'''


@click.command
@click.argument("folder", type=OutputFolder())
@click.option("--nbgrader", is_flag=True, help="Make FOLDER an nbgrader course, one assignment a notebook.")
@click.option("--no-questions", is_flag=True, help="Of an nbgrader course: give the questions no points.")
def command(folder: Path, nbgrader: bool, no_questions: bool) -> None:
    """Copy the notebooks to FOLDER for students: stubs and no outputs.

    Documents that the notebooks link to are copied, too. With --nbgrader, the copies are the sources of
    assignments, with points: checks give those of exercises, and you give those of questions. The sixth
    report (`labkit report`) is an assignment, too. See docs/grading.md.
    """
    from labkit.cli.course import copies

    def change(notebook: Any, exercises: Exercises) -> None:
        copies.release(notebook, exercises)
        copies.add_nbgrader(notebook, exercises, not no_questions)

    with copies_in(folder, change, nbgrader) as (part, names, _):
        if nbgrader:
            (part / "nbgrader_config.py").write_bytes(CONFIG.encode())
            names.append(write_sixth_report(part / "source"))
    if nbgrader:
        click.echo(f"{folder}: a course with {len(names)} assignments. Next, in this folder:")
        click.echo("".join(f"    nbgrader generate_assignment {name}\n" for name in names), nl=False)
    else:
        click.echo(f"{folder}: {len(names)} notebooks for students")


def write_sixth_report(sources: Path) -> str:
    """Write the assignment of the sixth report beside those of the notebooks; return its name."""
    import nbformat

    from labkit.cli.course import sixth_report

    folder = sources / sixth_report.NAME
    folder.mkdir()
    text = f"{nbformat.writes(sixth_report.source())}\n"
    (folder / f"{sixth_report.NAME}.ipynb").write_bytes(text.encode())
    return sixth_report.NAME


@click.command
@click.argument("folder", type=OutputFolder())
@click.option(
    "--notebook", "numbers", multiple=True, metavar="NN", help="Only this one, as 03; repeat it for several."
)
def solutions(folder: Path, numbers: tuple[str, ...]) -> None:
    """Copy the notebooks to FOLDER for instructors: the solution in place of each stub, and no outputs.

    `exercises.md` lists the exercises, with minutes, points and the mistakes that the checks name, and the
    model answers to the questions.
    """
    from labkit.cli.course import copies

    with copies_in(folder, copies.solve, numbers=numbers) as (part, names, exercises):
        titles = {name.partition("_")[0]: name for name in names}
        listed = [exercise for exercise in exercises.values() if exercise.notebook in titles]
        text = copies.markdown(listed, titles)
        (part / "exercises.md").write_bytes(text.encode())
    click.echo(f"{folder}: {counted(len(names), 'notebook')} with solutions; do not hand them out")


@contextmanager
def copies_in(
    folder: Path,
    change: Callable[[Any, Exercises], None],
    nbgrader: bool = False,
    numbers: tuple[str, ...] = (),
) -> Iterator[tuple[Path, list[str], Exercises]]:
    """Write a changed copy of each notebook to a new or empty folder, which is complete or stays as it was.

    With `nbgrader`, write them to its folder `source`; with `numbers`, such as "03", only these. Yield the
    folder that holds all until the block ends, the notebooks' names, and the exercises by name.
    """
    from labkit.checks.exercise import ORIGINALS, HeadingError
    from labkit.cli.course import copies, folders
    from labkit.exercises import catalogue

    target = folder / "source" if nbgrader else folder
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists and is not an empty folder; choose another one.")
    originals, exercises = sorted(ORIGINALS.glob("*.ipynb")), catalogue.exercises()
    known = {path.name.partition("_")[0] for path in originals}
    if not set(numbers) <= known:
        wrong = min(set(numbers) - known)
        raise InputError(f"--notebook {wrong!r}: expected one of {', '.join(sorted(known))}")
    originals = [path for path in originals if not numbers or path.name.partition("_")[0] in numbers]
    with one_line(copies.CopyError, HeadingError), folders.whole(folder) as part:
        files = folders.contents(
            originals, lambda notebook: change(notebook, exercises), of_their_own=nbgrader
        )
        for place, content in files.items():
            path = part / target.relative_to(folder) / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield part, [path.stem for path in originals], exercises
