"""The options of `labkit train`, under the headings of its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from labkit.cli.inputs import Finite, Place, Whole

# The names in labkit.train.experiment, labkit.data and labkit.comm, repeated because importing those loads
# NumPy and MPI, which --help must not wait for.
MODEL = ("linear", "softmax", "mlp", "lenet5", "mnist-cnn", "vgg11")
DATA = ("linear", "digits", "mnist", "cifar10")
SHARD = ("contiguous", "strided", "shuffled", "by-label", "outlying", "weighted")
OPTIMIZER = ("sgd",)
LR_SCHEDULE = ("constant", "step", "warm-up", "cosine")
BUFFERS = ("average", "broadcast", "leave")
ALGORITHM = (
    "mpi", "mpi-allgather", "allgather", "root", "ring", "tree", "recursive-doubling", "halving-doubling",
    "shared-memory", "auto",
)  # fmt: skip
AGGREGATE = ("sum", "mean", "weighted", "median", "trimmed-mean")
PRESET = (
    "report-c-1", "report-c-2a", "report-c-2b", "report-c-3", "report-d-allreduce", "report-d-allgather",
    "report-e-allreduce", "report-e-ring",
)  # fmt: skip

BY_MODEL = "[default: depends on the model, see below]"


POSITIVE = Whole()
Option = Callable[[Any], Any]


def _choice(name: str, of: tuple[str, ...], text: str, default: str = "") -> Option:
    shown = f"{text} [default: {default}]" if default else text
    return click.option(name, type=click.Choice(of), help=shown)


OPTIONS: dict[str, list[Option]] = {
    "Model and data": [
        click.option("--model", type=click.Choice(MODEL), help="[default: linear, or the preset's]"),
        _choice("--data", DATA, "Data set; not every one fits every model.", "see below"),
        click.option("--samples", type=POSITIVE, metavar="N", help="Train on the first N samples only."),
        _choice(
            "--shard",
            SHARD,
            "Which samples each rank gets. With strided, shuffled and weighted shards, the result does not "
            "depend on the number of ranks.",
            "depends on the model, see below; else strided, or contiguous if a step takes all samples",
        ),
        click.option(
            "--augment/--no-augment",
            default=None,
            help=f"Shift and mirror images at random, as fits the data set. {BY_MODEL}",
        ),
        click.option(
            "--seed",
            type=Whole(0),
            help="Seed of the initial weights, shuffling, augmentation and jitter. [default: 0]",
        ),
    ],
    "Steps": [
        click.option("--epochs", type=POSITIVE, help=f"Passes over the data. {BY_MODEL}"),
        click.option(
            "--iterations", type=POSITIVE, metavar="N", help="End after N steps, even within an epoch."
        ),
        click.option(
            "--batch",
            type=POSITIVE,
            help=f"Global batch: the samples in a step, over all ranks together. {BY_MODEL}",
        ),
        click.option(
            "--accumulate",
            type=POSITIVE,
            metavar="N",
            help="Compute each rank's gradient from N micro-batches, which need less memory. [default: 1]",
        ),
        _choice("--optimizer", OPTIMIZER, "Stochastic gradient descent.", "sgd"),
        click.option("--lr", type=Finite(min=0, min_open=True), help=f"Learning rate. {BY_MODEL}"),
        _choice("--lr-schedule", LR_SCHEDULE, f"How the learning rate changes. {BY_MODEL}"),
        click.option("--momentum", type=Finite(0, 1, max_open=True), help=f"Of the optimiser. {BY_MODEL}"),
        click.option("--weight-decay", type=Finite(min=0), help=f"Of the optimiser. {BY_MODEL}"),
    ],
    "Synchronisation": [
        _choice(
            "--algorithm",
            ALGORITHM,
            "All-reduce algorithm that averages the gradients: the MPI library's own, one of the lab's, "
            "shared memory for ranks of one machine, or auto, the fastest as measured on these ranks.",
            "mpi",
        ),
        _choice(
            "--aggregate",
            AGGREGATE,
            "How to combine the gradients: a mean weighted by local batch size, an unweighted mean, a sum "
            "(which multiplies the learning rate by the number of ranks), or, with --algorithm allgather or "
            "mpi-allgather, the median or the mean without the smallest and largest values.",
            "weighted",
        ),
        click.option(
            "--bucket-mb",
            type=Finite(min=0, min_open=True),
            metavar="MB",
            help="Overlap, with buckets of at most MB MiB (PyTorch's bucket_cap_mb). [default: 4]",
        ),
        click.option(
            "--overlap/--no-overlap",
            default=None,
            help="Average the gradient bucket by bucket while the backward pass goes on. [default: no]",
        ),
        _choice(
            "--buffers",
            BUFFERS,
            "What to do with batch norm's running statistics: average them, broadcast rank 0's, or leave "
            "each rank its own.",
            "average",
        ),
        click.option(
            "--check-weights/--no-check-weights",
            default=None,
            help="Check once an epoch that all ranks have equal weights. [default: yes]",
        ),
        click.option(
            "--average-after-step/--average-before-step",
            default=None,
            help="Let each rank step with its own gradient before averaging: report E's mistake, with which "
            "the ranks' weights drift apart. [default: before]",
        ),
    ],
    "Slow ranks and links": [
        click.option(
            "--bottleneck",
            multiple=True,
            metavar="RANK:KIND=AMOUNT",
            help="Slow one rank down: 3:slow-processor=3 (it takes 3 times as long to compute), "
            "3:slow-link=100mbit (emulated; with --link also a factor), 3:jitter=5ms (up to 5 ms before "
            "each step) or 3:pause=2s@10 (2 s before step 10). May be repeated.",
        ),
        click.option(
            "--link",
            metavar="BANDWIDTH[+LATENCY]",
            help="Emulate the link of every rank, for example 1gbit or 1gbit+50us.",
        ),
    ],
    "The run": [
        _choice("--preset", PRESET, "Run an experiment of a report; other options override its settings."),
        click.option(
            "--out",
            type=Place(),
            help="Directory for the results. [required, except with --preset: runs/PRESET, or --resume: RUN]",
        ),
        click.option(
            "--checkpoint-every", type=POSITIVE, metavar="N", help="Write a checkpoint every N iterations."
        ),
        click.option(
            "--resume",
            type=Place(),
            metavar="RUN",
            help="Continue the run in this directory from its last checkpoint.",
        ),
        click.option(
            "--log-every", type=POSITIVE, metavar="N", help="Print each rank's loss every N iterations."
        ),
        click.option(
            "--contributions/--no-contributions",
            default=None,
            help="Measure each rank's contribution to the gradient. [default: yes, but not with --overlap]",
        ),
        click.option("--ordered", is_flag=True, help="Print the lines of each epoch in the order of ranks."),
    ],
}

CNN = "cosine, momentum 0.9, weight decay 0.0005, shuffled, augmented"
# What fits each model, and its recipe: as in labkit.train.experiment.settings.
MODELS = [
    ("linear", "linear (synthetic); 10 epochs, all samples in a step, lr 0.1"),
    ("softmax", "digits, mnist, cifar10; 30 epochs, batch 64, lr 0.5"),
    ("mlp", "digits, mnist, cifar10; 30 epochs, batch 64, lr 0.1, momentum 0.9"),
    ("lenet5", f"digits, mnist; 30 epochs, batch 32, lr 0.05, {CNN}"),
    ("mnist-cnn", f"digits, mnist; 15 epochs, batch 32, lr 0.05, {CNN}"),
    ("vgg11", f"digits, mnist, cifar10; 6 epochs, batch 32, lr 0.02, {CNN}"),
]


class TrainCommand(click.Command):
    """A command whose help lists the options under the headings of OPTIONS, and the models below them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parameters = iter(self.get_params(ctx))
        for heading, options in OPTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [record for _ in options if (record := next(parameters).get_help_record(ctx))]
                )
        with formatter.section("Models, the data sets that fit them, and their defaults"):
            formatter.write_dl(MODELS)


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all OPTIONS to a command's function."""
    for option in reversed([option for options in OPTIONS.values() for option in options]):
        function = option(function)
    return function
