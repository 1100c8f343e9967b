"""The settings of a run: what they are, what each model is trained with, and which settings fit together.

The options of `labkit train` are made from the fields of `Settings` ("lr_schedule" for --lr-schedule), and
`run.json` holds them. This module loads neither NumPy nor MPI, so that `labkit train --help` is quick.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import partial
from typing import Any, Literal, get_args

from labkit import algorithms

Buffers = Literal["average", "broadcast", "leave"]
BUFFERS: tuple[Buffers, ...] = get_args(Buffers)
SHARD_STATES = "none", "optimizer", "gradients", "parameters"
OPTIMIZERS = "sgd", "adamw"
ADAMW = {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.01}  # PyTorch's defaults, instead of a recipe's
LR_SCHEDULES = "constant", "step", "warm-up", "cosine"
# The names in labkit.data and labkit.comm, repeated because importing those loads NumPy and MPI.
DATA = "linear", "report-a", "digits", "mnist", "cifar10"
SHARDS = "contiguous", "strided", "shuffled", "distributed-sampler", "by-label", "outlying", "weighted"
AGGREGATES = "sum", "mean", "weighted", "median", "trimmed-mean"

IMAGES = "digits", "mnist"


@dataclass(frozen=True)
class Recipe:
    """What a model is trained with unless options say otherwise; `str` tells it in the command's help.

    `datasets` are those that fit, the default first. `shape` is that of one sample, (channels, height,
    width); None if the model takes flat samples. A `batch` of None is all samples.
    """

    datasets: tuple[str, ...]
    shape: tuple[int, int, int] | None = None
    epochs: int = 30
    batch: int | None = 64
    lr: float = 0.1
    lr_schedule: str = "constant"
    momentum: float = 0.0
    weight_decay: float = 0.0
    augment: bool = False
    shard: str = "strided"

    def __str__(self) -> str:
        words = [f"{self.epochs} epochs", f"batch {self.batch}" if self.batch else "all samples in a step"]
        words.append(f"lr {self.lr:g}")
        if self.lr_schedule != "constant":
            words.append(self.lr_schedule)
        if self.momentum > 0:
            words.append(f"momentum {self.momentum:g}")
        if self.weight_decay > 0:
            words.append(f"weight decay {self.weight_decay:g}")
        if self.shard == "shuffled":
            words.append(self.shard)
        if self.augment:
            words.append("augmented")
        return f"{', '.join(self.datasets)}; {', '.join(words)}"

    def settings(self) -> dict[str, Any]:
        """Return the settings that depend on the model."""
        settings = asdict(self)
        del settings["shape"]
        return {"data": settings.pop("datasets")[0], **settings}


# The recipes of the convolutional networks were chosen on a fifth of the training samples of the digits.
_cnn = partial(
    Recipe,
    lr=0.05,
    lr_schedule="cosine",
    momentum=0.9,
    weight_decay=5e-4,
    augment=True,
    shard="shuffled",
)
RECIPES: dict[str, Recipe] = {
    # Report A's steps with all samples; with contiguous shards, as there.
    "linear": Recipe(("linear", "report-a"), epochs=10, batch=None, shard="contiguous"),
    "softmax": Recipe((*IMAGES, "cifar10"), lr=0.5),
    "mlp": Recipe((*IMAGES, "cifar10"), momentum=0.9),
    "lenet5": _cnn(IMAGES, (1, 32, 32), batch=32),
    "mnist-cnn": _cnn(IMAGES, (1, 28, 28), epochs=15, batch=32),
    "vgg11": _cnn((*IMAGES, "cifar10"), (3, 32, 32), epochs=6, batch=32, lr=0.02),
}


DATA_AND_MODEL, STEPS, SYNCHRONISATION = "Model and data", "Steps", "Synchronisation"
SLOW, THE_RUN = "Slow ranks and links", "The run"
BY_MODEL = "[default: depends on the model, see below]"


def _setting(heading: str, text: str, default: Any = MISSING, **shown: Any) -> Any:
    """Return a field with what the command line shows: under which heading of its help, with which words.

    `shown` may have its `choices`, its `metavar` and, of a flag, the option that says no (`opposite`; else
    --no-NAME). A number is at least `least`, or more than `above`, and less than `below`.
    """
    return field(default=default, metadata={"heading": heading, "help": text, **shown})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a run. Those without a default depend on the model: `complete` takes its recipe's."""

    model: str = _setting(DATA_AND_MODEL, "[default: linear, or the preset's]", "linear", choices=RECIPES)
    data: str = _setting(
        DATA_AND_MODEL, "Data set; not every one fits every model. [default: see below]", choices=DATA
    )
    samples: int | None = _setting(DATA_AND_MODEL, "Train on the first N samples only.", None, metavar="N")
    shard: str = _setting(
        DATA_AND_MODEL,
        "Which samples each rank gets. With strided, shuffled and weighted shards, the result does not "
        "depend on the number of ranks. [default: depends on the model, see below; else strided, or "
        "contiguous if a step takes all samples]",
        choices=SHARDS,
    )
    augment: bool = _setting(
        DATA_AND_MODEL, f"Shift and mirror images at random, as fits the data set. {BY_MODEL}"
    )
    seed: int = _setting(
        DATA_AND_MODEL,
        "Seed of the initial weights, shuffling, augmentation and jitter. [default: 0]",
        0,
        least=0,
    )

    epochs: int | None = _setting(STEPS, f"Passes over the data. {BY_MODEL}")
    iterations: int | None = _setting(STEPS, "End after N steps, even within an epoch.", None, metavar="N")
    batch: int | None = _setting(
        STEPS, f"Global batch: the samples in a step, over all ranks together. {BY_MODEL}"
    )
    accumulate: int = _setting(
        STEPS,
        "Compute each rank's gradient from N micro-batches, which need less memory. [default: 1]",
        1,
        metavar="N",
    )
    optimizer: str = _setting(
        STEPS,
        "Stochastic gradient descent, or AdamW: with lr 0.001 and weight decay 0.01 unless these are given. "
        "[default: sgd]",
        "sgd",
        choices=OPTIMIZERS,
    )
    lr: float = _setting(STEPS, f"Learning rate. {BY_MODEL}", above=0)
    lr_schedule: str = _setting(STEPS, f"How the learning rate changes. {BY_MODEL}", choices=LR_SCHEDULES)
    momentum: float = _setting(STEPS, f"Of stochastic gradient descent. {BY_MODEL}", least=0, below=1)
    weight_decay: float = _setting(STEPS, f"Of the optimizer. {BY_MODEL}", least=0)

    algorithm: str = _setting(
        SYNCHRONISATION,
        "All-reduce algorithm that averages the gradients: the MPI library's own, one of the lab's, "
        "shared memory for ranks of one machine, or auto: for large gradients shared memory on one "
        "machine and the ring between machines with a rank each, otherwise mpi. [default: auto]",
        algorithms.AUTO,
        choices=algorithms.NAMES,
    )
    aggregate: str = _setting(
        SYNCHRONISATION,
        "How to combine the gradients: a mean weighted by local batch size, an unweighted mean, a sum "
        "(which multiplies the learning rate by the number of ranks), or, with --algorithm allgather or "
        "mpi-allgather, the median or the mean without the smallest and largest values. "
        "[default: weighted]",
        "weighted",
        choices=AGGREGATES,
    )
    compress: str = _setting(
        SYNCHRONISATION,
        "Send compressed gradients: float16, or top-k, the largest 1 % of the values (top-k=0.05: 5 %). "
        "What is not sent is added to the next gradient (error feedback). [default: none]",
        "none",
        metavar="none|float16|top-k[=FRACTION]",
    )
    bucket_mb: float | None = _setting(
        SYNCHRONISATION,
        "Overlap, with buckets of at most MB MiB (PyTorch's bucket_cap_mb). [default: 4]",
        None,
        metavar="MB",
        above=0,
    )
    overlap: bool = _setting(
        SYNCHRONISATION,
        "Average the gradient bucket by bucket while the backward pass goes on. [default: no]",
        False,
    )
    shard_state: str = _setting(
        SYNCHRONISATION,
        "Let each rank keep only its own part of the optimizer's state (ZeRO-1), or also of the "
        "averaged gradient (ZeRO-2), or also of the parameters, gathered before each use (ZeRO-3). With "
        "--algorithm mpi or ring; implies --overlap. [default: none]",
        "none",
        choices=SHARD_STATES,
    )
    buffers: Buffers = _setting(  # noqa: RUF009
        SYNCHRONISATION,
        "What to do with batch norm's running statistics: average them, broadcast rank 0's, or leave "
        "each rank its own. [default: average]",
        "average",
        choices=BUFFERS,
    )
    check_weights: bool = _setting(
        SYNCHRONISATION, "Check once an epoch that all ranks have equal weights. [default: yes]", True
    )
    average_after_step: bool = _setting(
        SYNCHRONISATION,
        "Let each rank step with its own gradient before averaging: report E's mistake, with which "
        "the ranks' weights drift apart. [default: before]",
        False,
        opposite="average-before-step",
    )

    bottleneck: tuple[str, ...] = _setting(
        SLOW,
        "Slow one rank down: 3:slow-processor=3 (it takes 3 times as long to compute), "
        "3:slow-link=100mbit (emulated; with --link also a factor), 3:jitter=5ms (up to 5 ms before "
        "each step) or 3:pause=2s@10 (2 s before step 10). May be repeated.",
        (),
        metavar="RANK:KIND=AMOUNT",
    )
    link: str | None = _setting(
        SLOW,
        "Emulate the link of every rank, for example 1gbit or 1gbit+50us.",
        None,
        metavar="BANDWIDTH[+LATENCY]",
    )

    checkpoint_every: int | None = _setting(
        THE_RUN, "Write a checkpoint every N iterations.", None, metavar="N"
    )
    log_every: int | None = _setting(THE_RUN, "Print each rank's loss every N iterations.", None, metavar="N")
    contributions: bool | None = _setting(
        THE_RUN,
        "Measure each rank's contribution to the gradient. [default: yes, but not with --overlap]",
        None,
    )

    @classmethod
    def complete(cls, options: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Settings:
        """Return all settings of a run: the options, then a preset's or checkpoint's, then a recipe's.

        If the options name `iterations` and no epochs, `epochs` is None: as many as these iterations take.
        What older versions stored and nothing reads any more is left out.
        """
        chosen = {**(before or {}), **options}
        if chosen.get("optimizer") == "adamw" and (before or {}).get("optimizer") != "adamw":
            chosen = {**chosen, **ADAMW, **options}  # a recipe's and a preset's are for SGD
        if chosen.get("iterations") is not None:
            chosen.setdefault("epochs", None)
        settings = {**RECIPES[chosen.get("model", "linear")].settings(), **chosen}
        if settings["batch"] is not None and settings["shard"] == "contiguous" and "shard" not in chosen:
            settings["shard"] = "strided"  # then small steps are the same for any number of ranks
        settings["bottleneck"] = tuple(settings.get("bottleneck", ()))
        names = {setting.name for setting in fields(cls)}
        return cls(**{name: value for name, value in settings.items() if name in names})

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.model]

    def fault(self) -> str | None:
        """Return why these settings do not fit together, or None; before any data set is fetched."""
        if self.data not in self.recipe.datasets:
            fitting = ", ".join(self.recipe.datasets)
            return f"the model {self.model!r} does not fit the data set {self.data!r}; use --data {fitting}"
        if self.optimizer == "adamw" and self.momentum:
            return "--momentum is a setting of --optimizer sgd; AdamW averages the gradients by its own betas"
        if self.augment and self.recipe.shape is None:
            return f"--augment shifts images, and the model {self.model!r} takes flat samples"
        return None

    def command_line(self, ranks: int) -> str:
        """Return the command that repeats a run; its --out comes last, without a folder."""
        words = ["mpiexec", "-n", str(ranks), "labkit", "train"]
        for setting in fields(self):
            value, option = getattr(self, setting.name), "--" + setting.name.replace("_", "-")
            if isinstance(value, bool):
                if value != setting.default:
                    words.append(option if value else option.replace("--", "--no-", 1))
            elif isinstance(value, tuple):
                words += [word for entry in value for word in (option, str(entry))]
            elif value is not None:
                words += [option, str(value)]
        return shlex.join([*words, "--out"])
