"""`labkit run`: run an unchanged mpi4py program on ranks, and report a hang."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from labkit.cli.inputs import Finite, OutputFile
from labkit.cli.ranks import mpiexec, on_hosts, ranks_option, under_mpiexec
from mpiwatch.launch import DEADLINE_S, Options, launcher_of_ranks, run
from mpiwatch.program import load


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@ranks_option
@click.option(
    "--deadline",
    "deadline_s",
    type=Finite(min=0, min_open=True),
    default=DEADLINE_S,
    show_default=True,
    metavar="S",
    help="Seconds after which ranks that are all waiting inside MPI count as stuck.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Also find errors that show only by chance, such as a reliance on buffered sends.",
)
@click.option(
    "--json",
    type=OutputFile(),
    metavar="FILE",
    help="Write the report (if any) and the ranks' exit codes to a file.",
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    ranks: int | None, json: Path | None, program: str, arguments: tuple[str, ...], **settings: Any
) -> None:
    """Run an mpi4py program, unchanged, and report a hang: labkit run -n 4 program.py.

    The exit code is the program's own, 86 after a hang, 87 if --strict found errors, and 128 + the signal if
    a signal killed a rank. With another launcher: srun -n 4 python -m mpiwatch program.py.
    """
    if under_mpiexec() or launcher_of_ranks():
        raise click.UsageError(
            "a launcher has already started this process as a rank. Replace `labkit run` by "
            "`python -m mpiwatch`."
        )
    record = None if json is None else str(json)
    options = Options((program, *arguments), json=record, **settings)
    if not on_hosts():  # there, each host is asked for the program
        load(program, is_module=options.is_module)
    sys.exit(run(mpiexec(ranks, *([] if options.is_module else [os.path.abspath(program)])), options))
