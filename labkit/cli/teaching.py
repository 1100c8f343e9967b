"""`labkit course`: what nbgrader leaves to an instructor, typed in the folder of the course."""

# ruff: noqa: PLC0415 (imports inside functions: nbgrader and the exercises load only where they are needed)

from __future__ import annotations

from pathlib import Path

import click

from labkit.cli.inputs import InputError, Place, one_line

CONFIG = Path("nbgrader_config.py")


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


def known_assignment(name: str) -> str:
    """Return the name of an assignment of this course; raise InputError for another."""
    names = assignments_here()
    if name not in names:
        raise InputError(f"{name!r} is no assignment of this course: expected one of {', '.join(names)}")
    return name


@command.command
@click.argument("download", type=Place(exists=True))
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
