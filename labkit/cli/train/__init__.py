"""`labkit train`: `labkit.train.experiment` does the work."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy and MPI load only where the command runs)

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from labkit.cli.ranks import ending_together, first_on_its_node, under_mpiexec
from labkit.cli.train.options import TrainCommand, with_options
from mpiwatch.launch import Options, refuse_world_of_one
from mpiwatch.leftovers import sweep_after_this_job
from mpiwatch.program import begin_watching

NAME = "labkit train"
# The deadline of PyTorch's process groups with Gloo. No epoch, checkpoint or emulated link keeps all ranks
# inside one MPI call for so long. A rank that fails or dies, or ranks that wait in a circle, are reported at
# once.
DEADLINE_S = 1800.0


@click.command(cls=TrainCommand)
@with_options
def command(preset: str | None, resume: Path | None, out: Path | None, ordered: bool, **options: Any) -> None:
    """Train a model on the ranks that mpiexec started: mpiexec -n 4 labkit train --out run.

    For each epoch, every rank prints its own and the global loss, its training accuracy, its contribution to
    the averaged gradient, and the time it computed, waited and transferred. At the end, every rank tests its
    own model. Rank 0 writes the results to --out.
    """
    if preset and resume:
        raise click.UsageError("--preset and --resume: a run that is resumed keeps its own settings")
    if out and resume:
        raise click.UsageError("--out and --resume: a run that is resumed stays in its own directory")
    if out is None and preset is None and resume is None:
        raise click.UsageError("Missing option '--out'.")
    # Until the run listens to it, a signal that asks for a checkpoint must not end this rank.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # A single process: with other transports, Open MPI would leave shared memory behind.
    if not under_mpiexec():
        os.environ.setdefault("OMPI_MCA_btl", "self")
    elif first_on_its_node():
        sweep_after_this_job()
    if under_mpiexec() and "mpi4py.MPI" not in sys.modules:
        begin_watching(Options(tuple(sys.argv), deadline_s=DEADLINE_S, command=NAME))
    from mpi4py import MPI

    from labkit.cli.train.figures import draw
    from labkit.train.experiment import run

    comm = MPI.COMM_WORLD
    refuse_world_of_one(NAME, comm.size, MPI.get_vendor()[0])
    given = {name: value for name, value in options.items() if value not in (None, ())}
    with ending_together(comm, NAME):
        folder = out or resume or Path("runs", str(preset))
        run(comm, given, folder, preset=preset, resume=resume, ordered=ordered, draw=draw)
