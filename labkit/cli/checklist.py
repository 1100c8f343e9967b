"""`labkit checklist`: what the record of a run leaves out."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from labkit.cli.inputs import Place, one_line
from labkit.train.checklist import ITEMS, missing


@click.command
@click.argument("folder", type=Place(exists=True, file_okay=False))
def command(folder: Path) -> None:
    """List what the record in a run's FOLDER leaves out, of what a reader needs to judge the run.

    FOLDER is the directory that `labkit train` wrote to. docs/checklist.md explains the items. The exit
    status is 1 if an item is missing.
    """
    with one_line(ValueError, RecursionError):
        left_out = missing(folder)
    for name in left_out:
        click.echo(f"missing: {name}")
    click.echo(f"{len(ITEMS) - len(left_out)} of {len(ITEMS)} items are in the record of {folder}")
    sys.exit(bool(left_out))
