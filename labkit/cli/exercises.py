"""`labkit progress` and `labkit collect`: what a student has done, and the program that comes of it."""

# ruff: noqa: PLC0415 (imports inside functions: --help must not wait for NumPy)

from __future__ import annotations

from pathlib import Path

import click

from labkit.cli.inputs import Place, one_line


@click.command
def progress() -> None:
    """List the exercises of all notebooks: difficulty, points, and which are done, tried or not yet.

    The notebooks' checks keep this list; $LABKIT_PROGRESS is its file if it is set.
    """
    from labkit.exercises import progress as listed

    click.echo(str(listed()))


@click.command
@click.argument("folder", type=Place(exists=True, file_okay=False), required=False)
def collect(folder: Path | None) -> None:
    """Write my_ddp.py: a training program made of the functions that you have written.

    It trains on any number of ranks and needs only NumPy, mpi4py and digits.npz, which is written beside it.
    What you have not written yet is the reference, and says so. FOLDER is by default my-notebooks, if it is
    here, else the current folder.
    """
    from labkit.exercises import collect as write

    copies = Path("my-notebooks")
    with one_line(OSError):
        write(folder or (copies if copies.is_dir() else Path()))
