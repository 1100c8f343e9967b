"""`labkit report`: a student's own report, from the prediction to the page that is handed in."""

# ruff: noqa: PLC0415 (imports inside functions: --help must not wait for NumPy)

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from labkit.cli.inputs import (
    Finite,
    InputError,
    InputFile,
    InputFolder,
    NonEmptyPath,
    OutputFolder,
    Whole,
    one_line,
)


@click.group
def command() -> None:
    """Ask a question about your my_ddp.py: predict, run, write one page, and let it be checked."""


@command.command
@click.argument("folder", type=OutputFolder())
@click.option("--question", required=True, help="For example: Does my ring beat the root on 4 ranks?")
@click.option("--first", default="", help="Options of the first form, as '--average root' or '-n 1'.")
@click.option("--second", default="", help="Options of the second form, as '--average ring' or '-n 4'.")
@click.option(
    "--predict",
    "predicted",
    type=(Finite(min=0), Finite(min=0)),
    required=True,
    metavar="LOW HIGH",
    help="Between which values you expect the ratio of times, second to first.",
)
def begin(folder: Path, question: str, first: str, second: str, predicted: tuple[float, float]) -> None:
    """Write down your prediction in FOLDER, before anything runs."""
    from labkit.exercises import own_report

    with one_line(own_report.ReportError, OSError):
        click.echo(own_report.begin(folder, question, (first, second), predicted))


@command.command
@click.argument("folder", type=InputFolder())
@click.option(
    "--program",
    type=InputFile(),
    default=Path("my-notebooks/my_ddp.py"),
    show_default=True,
    help="Your program.",
)
@click.option("-n", "ranks", type=Whole(1, 64), default=4, show_default=True, help="Number of ranks.")
@click.option("--rounds", type=Whole(2, 1000), default=11, show_default=True)
def run(folder: Path, program: Path, ranks: int, rounds: int) -> None:
    """Run both forms of the program in turn, and keep the times, the interval and a figure in FOLDER."""
    from labkit.children import ChildError
    from labkit.exercises import own_report

    with one_line(own_report.ReportError, ChildError, OSError):
        click.echo(own_report.run(folder, program, ranks, rounds, click.echo))


@command.command
@click.argument("report", type=NonEmptyPath(exists=True))
def check(report: Path) -> None:
    """Check what a machine can check in the folder REPORT, and write what you hand in if nothing is wrong.

    Every number in the text must stand in a record, the prediction must be older than the runs, interval and
    figure must be those of the runs, and two other explanations must be named. Then it writes
    sixth_report.ipynb to hand in, and report.html to read and to print. REPORT can also be a file that was
    handed in.
    """
    from labkit.exercises import own_report

    with one_line(own_report.ReportError, OSError):
        if report.is_dir():
            faults = list(own_report.faults(report))
        else:
            with own_report.unpacked(read_notebook(report)) as folder:
                faults = list(own_report.faults(folder))
    for fault in faults:
        click.echo(f"- {fault}")
    if faults:
        click.get_current_context().exit(1)
    click.echo("Nothing is wrong that a machine can see.")
    if report.is_dir():
        click.echo(f"To hand in: {own_report.notebook(report)}. To read or print: {own_report.page(report)}")


def read_notebook(path: Path) -> Any:
    """Return a notebook's content. Raise InputError if the file is none."""
    import json

    from labkit.files import read_input

    try:
        return json.loads(read_input(path))
    except (ValueError, RecursionError):
        raise InputError(f"{path}: expected a report's folder, or the notebook that was handed in") from None
