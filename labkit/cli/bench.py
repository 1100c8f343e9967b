"""`labkit bench`: rows of ratios, the lab against others and against what is possible on this machine."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy reads the number of threads when it loads)

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from labkit.cli.collectives import collectives, progress
from labkit.cli.inputs import MOST_RANKS, Finite, Whole
from labkit.cli.ranks import (
    check_ranks,
    child_rows,
    ending_together,
    json_option,
    mpiexec,
    on_ranks,
    under_mpiexec,
)
from mpiwatch import env

if TYPE_CHECKING:
    from labkit.bench import Row

ROUNDS = {"vgg11": 9, "lenet5": 101}  # a step of LeNet-5 takes milliseconds, so it needs more of them
STEP_DEADLINE_S = 3600.0  # per number of threads; large batches of VGG-11 take minutes
WATCHING_DEADLINE_S = 600.0  # it takes seconds
TRAINING_DEADLINE_S = 3600.0  # the defaults take minutes


@click.group
def command() -> None:
    """Measure the lab: rows of ratios. Each row compares measurements that took turns in one run."""


command.add_command(collectives)


def _print(rows: list[Row], as_json: bool, more: str = "") -> None:
    """Print rows as JSON, or as a table with more text below it."""
    from labkit.bench import table

    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        click.echo(table(rows) + more)


@command.command
@click.option("--model", "models", type=click.Choice(list(ROUNDS)), multiple=True, help="[default: all]")
@click.option("--batch", "batches", type=Whole(2), multiple=True, help="[default: 64]")
@click.option("--threads", type=Whole(max=MOST_RANKS), multiple=True, help="BLAS threads. [default: 1]")
@json_option
def step(models: tuple[str, ...], batches: tuple[int, ...], threads: tuple[int, ...], as_json: bool) -> None:
    """Time a training step: forward, loss, backward, update.

    The step is compared with the matrix products that it needs (sgemm-floor: those of im2col; own-sgemm:
    those that the lab computes) and, if PyTorch is installed, with PyTorch's time and peak memory. --model,
    --batch and --threads may be repeated.
    """
    if len(threads) > 1:  # each in a process of its own, because BLAS reads the number when it loads
        options = [word for name in models for word in ("--model", name)]
        options += [word for batch in batches for word in ("--batch", str(batch))]
        rows = []
        for count in threads:
            words = [sys.executable, "-m", "labkit", "bench", "step", "--json", *options]
            rows += child_rows([*words, "--threads", str(count)], STEP_DEADLINE_S)
    else:
        rows = _step_rows(models or tuple(ROUNDS), batches or (64,), *(threads or (1,)))
    _print(rows, as_json)


def _step_rows(models: tuple[str, ...], batches: tuple[int, ...], threads: int) -> list[Row]:
    os.environ.update({name: str(threads) for name in env.ONE_THREAD})
    from labkit.bench.memory import peak
    from labkit.bench.pytorch import is_installed
    from labkit.bench.rows import rows_of
    from labkit.bench.step import measure

    cases = [(name, batch) for name in models for batch in batches]
    rows = [row for name, batch in cases for row in measure(name, batch, threads, ROUNDS[name])]
    if is_installed():
        for name, batch in cases:
            peaks = {side: peak(side, name, batch) for side in ("labkit", "pytorch")}
            rows += rows_of(f"{name}/b{batch}/peak", peaks, "MiB")
    return rows


@command.command
@click.option("--ranks", type=Whole(max=MOST_RANKS), default=4, show_default=True, help="MPI ranks to start.")
@json_option
def watching(ranks: int, as_json: bool) -> None:
    """Time Allreduce on the watched communicator against the MPI library's own."""
    program = "import json, dataclasses; from labkit.bench.watching import measure; rows = measure(); "
    program += (
        "from mpi4py import MPI; MPI.COMM_WORLD.rank or print(json.dumps([*map(dataclasses.asdict, rows)]))"
    )
    words = [*mpiexec(ranks), sys.executable, "-c", program]
    _print(child_rows(words, WATCHING_DEADLINE_S), as_json)


@command.command
@click.option(
    "--factor",
    type=Finite(min=1),
    default=3.0,
    show_default=True,
    help="How many times longer the last rank takes to compute.",
)
@click.option("--epochs", type=Whole(2), default=9, show_default=True)
@json_option
def bottleneck(factor: float, epochs: int, as_json: bool) -> None:
    """Time an epoch with one slow rank: shards weighted by speed against equal shards and the ideal.

    Start it on ranks that each have a core: mpiexec -n 2 labkit bench bottleneck. The ideal is the time of
    the same run with no slow rank, multiplied by p / Σ (1 / factor), the loss of speed.
    """
    os.environ.update(env.ONE_THREAD)
    from mpi4py import MPI

    from labkit.bench.bottleneck import format_figures, measure
    from labkit.comm import raise_together

    comm = MPI.COMM_WORLD
    with ending_together(comm, "labkit bench bottleneck"):
        alone = "expected at least two ranks, got one: mpiexec -n 2 labkit bench bottleneck"
        raise_together(comm, alone if comm.size == 1 else None)
        rows, figures = measure(comm, factor, epochs)
        if comm.rank == 0:
            _print(rows, as_json, f"\n{format_figures(figures)}")


@command.command
@click.option("--ranks", type=Whole(max=MOST_RANKS), help="Ranks to start without mpiexec. [default: 4]")
@click.option("--model", type=click.Choice(list(ROUNDS)), default="vgg11", show_default=True)
@click.option(
    "--batch",
    type=Whole(2),
    default=64,
    show_default=True,
    help="Local batch, of each rank.",
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    help="Measure 1 to all ranks. Strong: they share a global batch of ranks · batch.",
)
@click.option("--rounds", type=Whole(), default=5, show_default=True)
@json_option
def training(
    ranks: int | None, model: str, batch: int, *, scaling: str | None, rounds: int, as_json: bool
) -> None:
    """Time an iteration of data-parallel training, and its parts, for the four set-ups of report C.

    These are: one rank alone, averaging through the root, averaging by all-reduce, and averaging bucket by
    bucket while the backward pass goes on. If PyTorch is installed, its DistributedDataParallel over gloo
    trains the same model in the same rounds. The command starts its own ranks, unless mpiexec or
    `labkit hosts run` has started it on ranks.
    """
    if not under_mpiexec():
        on_ranks(ranks or 4, TRAINING_DEADLINE_S)
    os.environ.update(env.ONE_THREAD)
    from mpi4py import MPI

    from labkit.bench.training import compare
    from labkit.comm import sleeping_barrier

    comm = MPI.COMM_WORLD
    with ending_together(comm, "labkit bench training"):
        check_ranks(comm, ranks)
        rows, text = compare(comm, model, batch, scaling, rounds=rounds, report=progress(comm))
        if comm.rank == 0:
            click.echo(json.dumps([asdict(row) for row in rows], indent=1) if as_json else text)
        sleeping_barrier(comm)
