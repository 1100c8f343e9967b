"""`python -m benchmarks`: rows of ratios, the lab against PyTorch, MPI and what is possible on this machine.

For maintainers: it is not in the wheel. Each row compares measurements that took turns in one run.
"""

# ruff: noqa: PLC0415 (imports inside functions: NumPy reads the number of threads when it loads)

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click

from labkit.cli.bench import Bandwidth, json_option, measure_on_ranks, print_rows
from labkit.cli.inputs import MOST_RANKS, Whole
from labkit.cli.ranks import CommandsOnRanks, ranks_option
from mpiwatch import launch

MODELS = "vgg11", "lenet5"


@click.group(cls=CommandsOnRanks)
def command() -> None:
    """Measure the lab: rows of ratios. Each row compares measurements that took turns in one run."""
    os.environ.update(launch.settings())  # before a subcommand imports NumPy or MPI


_on_ranks = partial(measure_on_ranks, command_of="benchmarks")


@command.command
@click.option("--model", "models", type=click.Choice(MODELS), multiple=True, help="[default: all]")
@click.option("--batch", "batches", type=Whole(2), multiple=True, help="[default: 64]")
@click.option("--threads", type=Whole(max=MOST_RANKS), default=1, show_default=True, help="BLAS threads.")
@json_option
def step(models: tuple[str, ...], batches: tuple[int, ...], threads: int, as_json: bool) -> None:
    """Time a training step: forward, loss, backward, update.

    The step is compared with the matrix products that it needs (sgemm-floor: those of im2col; own-sgemm:
    those that the lab computes) and, if PyTorch is installed, with PyTorch's time and peak memory. --model
    and --batch may be repeated.
    """
    os.environ.update({name: str(threads) for name in launch.ONE_THREAD})
    from benchmarks.step import compare

    rows = compare(models or MODELS, batches or (64,), threads)
    print_rows(rows, as_json)


@command.command
@ranks_option
@json_option
def watching(**options: Any) -> None:
    """Time Allreduce on the watched communicator against the MPI library's own."""
    _on_ranks("benchmarks.watching", **options)


@command.command
@ranks_option
@json_option
def recording(**options: Any) -> None:
    """Time messages between pairs of ranks while their calls are recorded, and while they are not."""
    _on_ranks("benchmarks.recording", **options)


@command.command
@ranks_option
@click.option("--model", type=click.Choice(MODELS), default="vgg11", show_default=True)
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
@click.option("--setup", "setups", multiple=True, help="Measure this one, such as overlap. [default: all]")
@click.option(
    "--predict",
    "links",
    multiple=True,
    type=Bandwidth(),
    help="With --scaling strong: predict it for up to 256 ranks on links of this bandwidth, such as 10gbit.",
)
@click.option("--rounds", type=Whole(), default=5, show_default=True)
@json_option
def training(**options: Any) -> None:
    """Time an iteration of data-parallel training, and its parts, for the four set-ups of report C.

    These are: one rank alone, averaging through the root, averaging by all-reduce, and averaging bucket by
    bucket while the backward pass goes on. If PyTorch is installed, its DistributedDataParallel trains the
    same model in the same rounds, over gloo and with the lab's ring. The command starts its own ranks, unless
    mpiexec or `labkit hosts run` has started it on ranks. --setup and --predict may be repeated.
    """
    if options["links"] and options["scaling"] != "strong":
        raise click.UsageError("expected --scaling strong with --predict")
    _on_ranks("benchmarks.training", **options)


if __name__ == "__main__":
    command(prog_name="python -m benchmarks")
