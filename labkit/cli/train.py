"""`labkit train`: its options. `labkit.train.experiment.run` does the work."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy and MPI load only where the command runs)

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.train.experiment.run import Results

# Defaults that depend on the model. A batch of None is all samples, as in report A.
DEFAULTS: dict[str, dict[str, Any]] = {
    "linear": {"data": "linear", "epochs": 10, "lr": 0.1, "batch": None},
    "softmax": {"data": "digits", "epochs": 30, "lr": 0.5, "batch": 64},
}

# The names in labkit.data and labkit.comm, repeated because importing those loads NumPy.
DATA = ("linear", "digits", "mnist", "cifar10")
ALGORITHM = (
    "mpi", "allgather", "root", "ring", "tree", "recursive-doubling", "halving-doubling", "shared-memory"
)  # fmt: skip
AGGREGATE = ("sum", "mean", "weighted", "median", "trimmed-mean")
SHARD = ("contiguous", "strided", "shuffled", "by-label", "outlying", "weighted")

STEPS_DRAWN = 8  # the last steps, in timeline.png; trace.json has all that were recorded


@click.command
@click.option(
    "--model",
    type=click.Choice(list(DEFAULTS)),
    default="linear",
    show_default=True,
    help="Linear or softmax regression.",
)
@click.option(
    "--data", type=click.Choice(DATA), help="Data set. [default for linear: linear, for softmax: digits]"
)
@click.option(
    "--shard",
    type=click.Choice(SHARD),
    help="Which samples each rank gets. With strided, shuffled and weighted shards, the result does not "
    "depend on the number of ranks. [default: contiguous, or strided if there is a --batch]",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help="Passes over the data. [default for linear: 10, for softmax: 30]",
)
@click.option(
    "--lr",
    type=click.FloatRange(min=0, min_open=True),
    help="Learning rate. [default for linear: 0.1, for softmax: 0.5]",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Global batch: the samples in a step, over all ranks together. [default for linear: all samples, "
    "for softmax: 64]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the initial weights, of shuffled shards and of jitter.",
)
@click.option(
    "--bottleneck",
    multiple=True,
    metavar="RANK:KIND=AMOUNT",
    help="Slow one rank down: 3:slow-processor=3 (it takes 3 times as long to compute), 3:slow-link=100mbit "
    "(emulated; with --link also a factor), 3:jitter=5ms (up to 5 ms before each step) or 3:pause=2s@10 "
    "(2 s before step 10). May be repeated.",
)
@click.option(
    "--link",
    metavar="BANDWIDTH[+LATENCY]",
    help="Emulate the link of every rank, for example 1gbit or 1gbit+50us.",
)
@click.option(
    "--algorithm",
    type=click.Choice(ALGORITHM),
    default="mpi",
    show_default=True,
    help="All-reduce algorithm that averages the gradients: the MPI library's own, one of the lab's, or "
    "shared memory for ranks of one machine.",
)
@click.option(
    "--aggregate",
    type=click.Choice(AGGREGATE),
    default="weighted",
    show_default=True,
    help="How to combine the gradients: a mean weighted by local batch size, an unweighted mean, a sum "
    "(which multiplies the learning rate by the number of ranks), or, with --algorithm allgather, the "
    "median or the mean without the smallest and largest values.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory for the results.")
@click.option("--ordered", is_flag=True, help="Print the lines of each epoch in the order of their ranks.")
def command(model: str, out: Path, seed: int, ordered: bool, **options: Any) -> None:
    """Train a model on the ranks that mpiexec started: mpiexec -n 4 labkit train --out run.

    For each epoch, every rank prints its own and the global loss, the mean of its gradients, its contribution
    to the averaged gradient, and the time it waited and transferred. Rank 0 writes the results to --out.
    """
    from labkit.cli.ranks import ending_together, under_mpiexec

    if (
        not under_mpiexec()
    ):  # a single process: with other transports, Open MPI would leave shared memory behind
        os.environ.setdefault("OMPI_MCA_btl", "self")
    from mpi4py import MPI

    from labkit.train.experiment.run import run

    given = {name: value for name, value in options.items() if value not in (None, ())}
    settings = {"model": model, **DEFAULTS[model], **given}
    # Contiguous shards for report A's steps with all samples. Smaller steps need strided shards: then they
    # are the same for any number of ranks.
    settings.setdefault("shard", "contiguous" if settings["batch"] is None else "strided")
    comm = MPI.COMM_WORLD
    with ending_together(comm, "labkit train"):
        summary = run(comm, {**settings, "seed": seed}, out, ordered=ordered, draw=_draw)
        if summary:
            click.echo(summary)


def _draw(out: Path, results: Results) -> None:
    """Draw the losses and the last steps of the timeline."""
    from labkit.files import atomic_write
    from labkit.plots import losses, timeline

    rows, steps, run = results.rows, results.steps, results.run
    figure = losses(
        [[row.local_loss for row in rows if row.rank == rank] for rank in range(run["ranks"])],
        [row.global_loss for row in rows if row.rank == 0],
    )
    with atomic_write(out / "loss.png") as file:
        figure.savefig(file, format="png", dpi=150)
    slowed = [*([run["links"]] if "links" in run else []), *run["settings"].get("bottleneck", ())]
    figure = timeline(steps, ", ".join(slowed), max(1, steps[-1].step - STEPS_DRAWN + 1))
    with atomic_write(out / "timeline.png") as file:
        figure.savefig(file, format="png", dpi=150)
