"""`labkit bench`: how fast, as a share of what is possible here, and against others."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy reads the number of threads when it loads)

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import click

from labkit import env
from labkit.cli.collectives import collectives

ROUNDS = {"vgg11": 9, "lenet5": 101}  # a step of LeNet-5 takes milliseconds, so more of them


@click.group
def command() -> None:
    """Measure the lab: rows of ratios, each taken in one run, in turn."""


command.add_command(collectives)


@command.command
@click.option("--model", "models", type=click.Choice(list(ROUNDS)), multiple=True, help="[default: all]")
@click.option("--batch", "batches", type=click.IntRange(min=2), multiple=True, help="[default: 64]")
@click.option("--threads", type=click.IntRange(min=1), multiple=True, help="Threads of BLAS. [default: 1]")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as a list of objects.")
def step(models: tuple[str, ...], batches: tuple[int, ...], threads: tuple[int, ...], as_json: bool) -> None:
    """Time a whole training step: forward, loss, backward, update.

    Against the matrix products that it needs (sgemm-floor: those of im2col; own-sgemm: those it really
    makes), and against PyTorch where that is installed; also its peak memory against PyTorch's. --model,
    --batch and --threads may be given more than once.
    """
    from labkit.bench.rows import Row, table

    if len(threads) > 1:  # each in a process of its own
        options = [word for name in models for word in ("--model", name)]
        options += [word for batch in batches for word in ("--batch", str(batch))]
        rows = []
        for count in threads:
            child = [sys.executable, "-m", "labkit", "bench", "step", "--json", *options]
            done = subprocess.run(
                [*child, "--threads", str(count)], check=True, stdout=subprocess.PIPE, text=True
            )
            rows += [Row(**row) for row in json.loads(done.stdout)]
    else:
        rows = _rows(models or tuple(ROUNDS), batches or (64,), *(threads or (1,)))
    click.echo(json.dumps([asdict(row) for row in rows], indent=1) if as_json else table(rows))


@command.command
@click.option("--ranks", type=click.IntRange(min=1), default=4, show_default=True, help="MPI ranks to start.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as a list of objects.")
def watching(ranks: int, as_json: bool) -> None:
    """Time an Allreduce of the watched communicator against MPI's own."""
    from labkit.bench.rows import Row, table

    program = "import json, dataclasses; from labkit.bench.watching import measure; rows = measure(); "
    program += (
        "from mpi4py import MPI; MPI.COMM_WORLD.rank or print(json.dumps([*map(dataclasses.asdict, rows)]))"
    )
    command_line = [env.mpiexec(), "-n", str(ranks), sys.executable, "-c", program]
    environment = {**os.environ, **env.settings()}
    done = subprocess.run(command_line, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    rows = [Row(**row) for row in json.loads(done.stdout)]
    click.echo(json.dumps([asdict(row) for row in rows], indent=1) if as_json else table(rows))


def _rows(models: tuple[str, ...], batches: tuple[int, ...], threads: int) -> list:
    os.environ.update({name: str(threads) for name in env.ONE_THREAD})
    from labkit.bench.memory import peak
    from labkit.bench.peers import pytorch
    from labkit.bench.rows import rows_of

    cases = [(name, batch) for name in models for batch in batches]
    # Memory first: see `peak`.
    memory = []
    if pytorch():
        for name, batch in cases:
            peaks = {side: peak(side, name, batch) for side in ("labkit", "pytorch")}
            memory += rows_of(f"{name}/b{batch}/peak", peaks, "MiB")

    from labkit.bench.step import measure

    rows = [row for name, batch in cases for row in measure(name, batch, threads, ROUNDS[name])]
    return rows + memory


@command.command
@click.option(
    "--factor",
    type=click.FloatRange(min=1),
    default=3.0,
    show_default=True,
    help="How many times longer the last rank computes.",
)
@click.option("--epochs", type=click.IntRange(min=2), default=9, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as a list of objects.")
def bottleneck(factor: float, epochs: int, as_json: bool) -> None:
    """Time an epoch with one slow rank: shards by speed, against equal ones and the ideal.

    Start it on ranks, each with a core of its own: mpiexec -n 2 labkit bench bottleneck. The ideal is the
    time of the same run with no rank slow, times what the ranks' speed together has lost.
    """
    os.environ.update(env.ONE_THREAD)
    from mpi4py import MPI

    from labkit.bench.bottleneck import measure, said
    from labkit.bench.rows import table
    from labkit.cli.ranks import ending_together
    from labkit.comm import raise_together

    comm = MPI.COMM_WORLD
    with ending_together(comm, "labkit bench bottleneck"):
        alone = "expected at least two ranks, got one: mpiexec -n 2 labkit bench bottleneck"
        raise_together(comm, alone if comm.size == 1 else None)
        rows, figures = measure(comm, factor, epochs)
        if comm.rank == 0:
            click.echo(
                json.dumps([asdict(row) for row in rows], indent=1)
                if as_json
                else f"{table(rows)}\n{said(figures)}"
            )
