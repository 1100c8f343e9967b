"""`labkit progress`, `labkit collect` and `labkit contest`: what students have done, and what comes of it."""

# ruff: noqa: PLC0415 (imports inside functions: --help must not wait for NumPy)

from __future__ import annotations

import getpass
import json
import re
from pathlib import Path

import click

from labkit.cli.inputs import InputError, InputFolder, Whole, one_line


@click.command
@click.option(
    "--share",
    "shared",
    type=InputFolder(),
    help="Write a file to this folder of your class: states, tries and findings, no code and no answers.",
)
@click.option("--name", help="Your name in the class, with --share. [default: that of your account]")
def progress(shared: Path | None, name: str | None) -> None:
    """List the exercises of all notebooks: difficulty, points, and which are done, tried or not yet.

    The notebooks' checks keep this list, for each folder of notebooks: that is the current folder, or
    my-notebooks in it. $LABKIT_PROGRESS is its file if it is set.
    """
    from labkit.checks.exercise import HeadingError
    from labkit.exercises import progress as listed

    if shared is not None:
        from labkit.exercises import sharing

        account = name or getpass.getuser()
        if not re.fullmatch(r"[\w.@-]+", account) or account.startswith("."):
            raise InputError(f"--name {account!r}: expected letters, digits and _ . @ -")
        with one_line(OSError):
            click.echo(sharing.share(shared, account))
        return
    with one_line(HeadingError):
        click.echo(str(listed()))


@click.command
@click.argument("folder", type=InputFolder(), required=False)
def collect(folder: Path | None) -> None:
    """Write my_ddp.py: a training program made of the functions that you have written.

    It trains on any number of ranks and needs only NumPy, mpi4py and digits.npz, which is written beside it.
    With each function of yours it can do more; until then, the plainest thing that works stands there. FOLDER
    is by default my-notebooks, if it is here, else the current folder.
    """
    from labkit.exercises import collect as write

    copies = Path("my-notebooks")
    with one_line(OSError):
        write(folder or (copies if copies.is_dir() else Path()))


@click.command
@click.argument("folder", type=InputFolder())
@click.option("--ranks", type=Whole(2, 32), default=6, show_default=True, help="Ranks of the schedules.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as a list of objects.")
@click.option(
    "--incident",
    "seeds",
    type=Whole(0),
    multiple=True,
    help="Print the table of this incident of notebook 11 instead; repeat it for a mean over several.",
)
def contest(folder: Path, ranks: int, seeds: tuple[int, ...], *, as_json: bool) -> None:
    """Simulate every entry in FOLDER on three networks, and print the table of scores.

    An entry is a file NAME.py; the last function that it defines takes the number of ranks and yields the
    rounds of an all-reduce. It runs in the sandbox of the exercises. docs/instructors.md explains the scores.
    With --incident SEED, FOLDER holds a copy of each student's progress.json, NAME.json. Scores are computed
    from the evidence in it, and nothing runs.
    """
    from labkit.exercises import allreduce_contest, on_call

    if seeds:
        scored = on_call.class_rows(folder.glob("*.json"), seeds)
        click.echo(json.dumps(scored, indent=1) if as_json else on_call.class_table(scored))
        return

    def say(text: str) -> None:
        click.echo(text, err=True)

    allreduce_contest.use_sandbox(say)
    results = allreduce_contest.judge_folder(folder, ranks, say)
    if len(results) == len(allreduce_contest.COMPARED):
        raise InputError(f"{folder}: there is no entry, expected files NAME.py")
    rows = allreduce_contest.rows(results)
    click.echo(json.dumps(rows, indent=1) if as_json else allreduce_contest.table(results))
