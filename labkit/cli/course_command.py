"""`labkit course`: what nbgrader leaves to an instructor, typed in the folder of the course."""

# ruff: noqa: PLC0415 (imports inside functions: nbgrader and the exercises load only where they are needed)

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from labkit.cli.inputs import (
    Finite,
    InputError,
    InputFile,
    InputFolder,
    NonEmptyPath,
    OutputFile,
    Whole,
    one_line,
)
from labkit.files import atomic_write
from labkit.text import counted
from mpiwatch.processes import cores

CONFIG = Path("nbgrader_config.py")
MOST_JOBS = 256  # submissions that are graded at a time
NO_NBGRADER = "this command needs nbgrader: `make env ADD=grading` installs it"


@click.group
def command() -> None:
    """Collect, regrade and pass on what a class hands in. Type these commands in the folder of the course."""


def assignments_here() -> list[str]:
    """Return the assignments of the course in the current folder; raise InputError if it has none."""
    names = sorted(path.name for path in Path("source").glob("*") if path.is_dir())
    if not CONFIG.is_file() or not names:
        raise InputError(
            f"{Path.cwd()} is no course: expected {CONFIG} and the folder source, which "
            "`labkit release --nbgrader` makes. Type the command in the folder of the course."
        )
    return names


def known_assignment(name: str, known: Iterable[str] = ()) -> str:
    """Return the name of an assignment of this course, or of `known` ones; raise InputError for another."""
    names = list(known) or assignments_here()
    if name not in names:
        raise InputError(f"{name!r} is no assignment of this course: expected one of {', '.join(names)}")
    return name


def the_gradebook() -> Any:
    """Return the module for nbgrader's gradebook."""
    return with_nbgrader("labkit.cli.course.gradebook")


def with_nbgrader(name: str) -> Any:
    """Return a module of the course that needs nbgrader; raise InputError if that is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "nbgrader":
            raise
        raise InputError(NO_NBGRADER) from None


@command.command
@click.argument("download", type=NonEmptyPath(exists=True))
def submissions(download: Path) -> None:
    """Put the notebooks of a learning platform's DOWNLOAD, a folder or a .zip, into the folder `submitted`.

    It knows the names that Canvas and Moodle give, and NAME_05_ring_reduce.ipynb, also with what browsers
    add. A student's newest notebook counts; older ones go to the folder `earlier`. What cannot be assigned is
    named, with the reason, and the exit status is 1.
    """
    from labkit.cli.course.submissions import DownloadError, collect, report

    names = assignments_here()
    with one_line(DownloadError, OSError):
        collected = collect(download, Path(), names)
    click.echo(report(collected))
    if collected.unassigned:
        click.get_current_context().exit(1)


@command.command
@click.argument("download", type=NonEmptyPath(exists=True))
@click.option(
    "--incident",
    "seeds",
    type=Whole(0),
    multiple=True,
    help="A number of notebook 11 that the class has worked on; repeat it for several.",
)
@click.option("--ranks", type=Whole(2, 32), default=6, show_default=True, help="Ranks of the schedules.")
def contest(download: Path, seeds: tuple[int, ...], ranks: int) -> None:
    """Write the points of a contest into the gradebook: ten at most, as an assignment of their own.

    DOWNLOAD, a folder or a .zip, holds a file for each student, with the names of Canvas or Moodle, or
    NAME.json and NAME.py. With --incident, these are copies of progress.json, and the assignment is
    incidents. Otherwise they are schedules for the all-reduce contest, and the assignment is
    allreduce_contest.
    """
    from labkit.cli.course import contests
    from labkit.cli.course.submissions import DownloadError

    assignments_here()
    gradebook = the_gradebook()
    with one_line(DownloadError, OSError):
        if seeds:
            name, parts, points, table = contests.incidents(download, seeds)
        else:
            name, parts, points, table = contests.schedules(
                download, ranks, lambda text: click.echo(text, err=True)
            )
    if not points:
        raise InputError(f"{download}: expected a file {'NAME.json' if seeds else 'NAME.py'} of each student")
    gradebook.record(name, parts, points)
    click.echo(table)
    click.echo(f"{name}: the points of {counted(len(points), 'student')} are in the gradebook.")


@command.command
@click.argument("assignment")
@click.option("--student", "names", multiple=True, help="Only this one; repeat it for several.")
@click.option("--again", is_flag=True, help="Also those that were graded and have not changed.")
@click.option(
    "--jobs", type=Whole(max=MOST_JOBS), metavar="N", help="Submissions at a time. [default: the cores]"
)
def grade(assignment: str, names: tuple[str, ...], again: bool, jobs: int | None) -> None:
    """Grade what students have handed in for ASSIGNMENT, several submissions at a time.

    It writes nbgrader's gradebook, as `nbgrader autograde` does. Submissions that were graded and have not
    changed are left out, so the same command goes on after Ctrl-C. If one cannot be graded, the exit status
    is 1.
    """
    began = time.monotonic()
    name, grading = known_assignment(assignment), with_nbgrader("labkit.cli.course.class_grading")
    students = grading.students_of(name)
    unknown = [student for student in names if student not in students]
    if unknown:
        raise InputError(f"{unknown[0]} has handed in nothing for {name}")
    if not students:
        raise InputError(f"nobody has handed in {name}: expected submitted/STUDENT/{name}/{name}.ipynb")
    try:
        with one_line():
            graded = grading.grade(name, names or students, jobs or cores(), click.echo, again=again)
    except KeyboardInterrupt:
        raise click.ClickException("stopped; the same command grades what is left") from None
    click.echo(grading.summary(graded, time.monotonic() - began))
    click.echo(f"Next: nbgrader generate_feedback {name}")
    if any(submission.error for submission in graded):
        click.get_current_context().exit(1)


@command.command
@click.argument("student")
@click.argument("assignment")
@click.option(
    "--days", type=Finite(min=0), required=True, help="From the deadline of the assignment; 0 for none."
)
def extend(student: str, assignment: str, days: float) -> None:
    """Give STUDENT more days for ASSIGNMENT, in place of an extension before.

    nbgrader counts lateness when it grades: afterwards, grade what the student has handed in once more.
    """
    name, gradebook = known_assignment(assignment), the_gradebook()
    with one_line(gradebook.GradebookError):
        deadline = gradebook.extend(student, name, days)
    click.echo(f"{student}: {name} until {deadline:%Y-%m-%d %H:%M} UTC.")
    if gradebook.graded(student, name):
        click.echo(f"Next: nbgrader autograde {name} --student {student} --force")


@command.command
@click.argument("assignment")
@click.argument("table", type=InputFile())
@click.option("--zone", default="UTC", show_default=True, help="Of times that name none, as Europe/Berlin.")
def times(assignment: str, table: Path, zone: str) -> None:
    """Note when students have handed in ASSIGNMENT: from Moodle's grading worksheet, or student and time.

    TABLE is a .csv with a head. The times go to `timestamp.txt`, which nbgrader reads when it grades.
    """
    from zoneinfo import ZoneInfoNotFoundError

    from labkit.cli.course import platforms

    name, gradebook = known_assignment(assignment), the_gradebook()
    try:
        with one_line(platforms.TableError, OSError):
            lines = gradebook.note_times(name, platforms.read(table), zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise InputError(f"--zone {zone!r}: expected a time zone such as Europe/Berlin") from None
    click.echo("\n".join(lines))


@command.command
@click.argument("table", type=InputFile())
@click.argument("out", type=OutputFile())
@click.option(
    "--assignment", "names", multiple=True, help="Repeat it for several. [default: all that were graded]"
)
@click.option(
    "--column", "columns", multiple=True, metavar="NAME=TITLE", help="Canvas's title of an assignment."
)
@click.option("--scale", is_flag=True, help="Convert points to Moodle's maximum, if it is another.")
def grades(table: Path, out: Path, names: tuple[str, ...], columns: tuple[str, ...], scale: bool) -> None:
    """Write the grades into TABLE, Canvas's or Moodle's own, and save it as OUT, for the platform to import.

    TABLE is the export of Canvas's gradebook, or the grading worksheet of an assignment in Moodle.
    """
    from labkit.cli.course import platforms

    gradebook = the_gradebook()
    known = dict.fromkeys([*assignments_here(), *gradebook.recorded()])
    assignments = [known_assignment(name, known) for name in names] or list(known)
    titles = {}
    for column in columns:
        name, separator, title = column.partition("=")
        if not separator or not title:
            raise InputError(f"--column {column!r}: expected NAME=TITLE, such as 05_ring_reduce='Week 4'")
        titles[known_assignment(name, known)] = title
    with one_line(platforms.TableError, gradebook.GradebookError, OSError):
        content = platforms.read(table)
        if platforms.is_canvas(content):
            scored = [
                gradebook.assignment_scores(name)
                for name in assignments
                if names or was_graded(name) or not gradebook.has_notebook(name)
            ]
            if not scored:
                raise InputError("there are no grades yet: `nbgrader autograde` makes them")
            filled = platforms.canvas(content, scored, titles)
        elif platforms.is_moodle(content):
            if len(names) != 1:
                raise InputError("Moodle's worksheet is that of one assignment: name it with --assignment")
            filled = platforms.moodle(content, gradebook.assignment_scores(names[0]), scale=scale)
        else:
            raise InputError(
                f"{table}: expected Canvas's export (Student, ID, …, Section), or Moodle's worksheet in "
                f"English ({platforms.IDENTIFIER}, {platforms.GRADE}, {platforms.MODIFIED}); "
                f"got {', '.join(content.head[:6])}"
            )
        with atomic_write(out) as file:
            file.write(filled.table.text().encode())
    click.echo("\n".join([*filled.lines, f"{out}: the grades, for the platform to import."]))


def was_graded(assignment: str) -> bool:
    """Tell whether nbgrader has graded any submission of an assignment."""
    return any(Path("autograded").glob(f"*/{assignment}"))


@command.command
@click.argument("exercise")
def regrade(exercise: str) -> None:
    """Judge one EXERCISE of all graded notebooks again, and list whose points change: regrade ring_allgather.

    Use it after a check was mended. Other exercises keep their points, and so does what you gave by hand.
    """
    from labkit.exercises import catalogue

    with one_line(catalogue.UnknownExercise):
        number = catalogue.find(exercise).notebook
    names = [name for name in assignments_here() if name.partition("_")[0] == number]
    if not names:
        raise InputError(f"{exercise} is of notebook {number}, which this course does not have")
    regrading = with_nbgrader("labkit.cli.course.regrading")
    changes = regrading.regrade(exercise, names[0], click.echo)
    click.echo(regrading.summary(exercise, changes))
    click.echo(f"Next: nbgrader generate_feedback {names[0]} --force")


@command.command
@click.argument("assignment")
@click.option("--json", "as_json", is_flag=True, help="Print the groups as a list of objects.")
def alike(assignment: str, *, as_json: bool) -> None:
    """List functions of ASSIGNMENT that are equal in a class, or equal to the reference: a hint, no proof.

    Names of variables, comments, docstrings and layout do not count. The longest functions come first.
    """
    name, regrading = known_assignment(assignment), with_nbgrader("labkit.cli.course.regrading")
    groups, counts = regrading.alike(name)
    click.echo(regrading.alike_json(groups) if as_json else regrading.alike_text(groups, counts))


@command.command
@click.argument("folder", type=InputFolder())
def progress(folder: Path) -> None:
    """Show where a class is, from the files that students have shared in FOLDER.

    These are the files of `labkit progress --share`. The table has each student's exercise, the most frequent
    findings, and who has tried one exercise ten times. This command works in any folder.
    """
    from labkit.exercises import sharing

    click.echo(sharing.table(folder))
