"""The settings of a run: what each model is trained on, by which recipe, and which settings fit together.

Settings are a dictionary with a name for each option of `labkit train` ("lr_schedule" for --lr-schedule), so
that `run.json` can hold them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from labkit.data import Augmentation

IMAGES = ("digits", "mnist")


@dataclass(frozen=True)
class Recipe:
    """What a model is trained with unless options say otherwise.

    `data` lists the data sets that fit, the default first. `shape` is that of one sample, (channels, height,
    width); None if the model takes flat samples. A `batch` of None is all samples.
    """

    data: tuple[str, ...]
    shape: tuple[int, int, int] | None = None
    epochs: int = 30
    batch: int | None = 64
    lr: float = 0.1
    lr_schedule: str = "constant"
    momentum: float = 0.0
    weight_decay: float = 0.0
    augment: bool = False
    shard: str = "strided"

    def settings(self) -> dict[str, Any]:
        """Return the settings that depend on the model."""
        settings = {each.name: getattr(self, each.name) for each in fields(self)}
        settings["data"] = self.data[0]
        del settings["shape"]
        return settings


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
    "linear": Recipe(("linear",), epochs=10, batch=None, shard="contiguous"),
    "softmax": Recipe((*IMAGES, "cifar10"), lr=0.5),
    "mlp": Recipe((*IMAGES, "cifar10"), momentum=0.9),
    "lenet5": _cnn(IMAGES, (1, 32, 32), batch=32),
    "mnist-cnn": _cnn(IMAGES, (1, 28, 28), epochs=15, batch=32),
    "vgg11": _cnn((*IMAGES, "cifar10"), (3, 32, 32), epochs=6, batch=32, lr=0.02),
}

# What --augment does to the images of a data set: digits must not be mirrored.
AUGMENTATIONS = {
    "digits": Augmentation(shift=2),
    "mnist": Augmentation(shift=2),
    "cifar10": Augmentation(shift=4, flip=True),
}

# The settings that do not depend on the model.
COMMON: dict[str, Any] = {
    "samples": None,
    "iterations": None,
    "accumulate": 1,
    "optimizer": "sgd",
    "buffers": "average",
    "check_weights": True,
    "algorithm": "mpi",
    "aggregate": "weighted",
    "bucket_mb": None,
    "overlap": False,
    "average_after_step": False,
    "bottleneck": (),
    "link": None,
    "contributions": None,
    "log_every": None,
    "checkpoint_every": None,
    "seed": 0,
}


def complete(given: Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all settings of a run, from the `given` ones, those of a preset and the model's recipe.

    The `given` settings count most. If they name `iterations` and no epochs, `epochs` is None: as many as
    these iterations take.
    """
    chosen = {**(preset or {}), **given}
    if chosen.get("iterations") is not None:
        chosen.setdefault("epochs", None)
    model = chosen.get("model", "linear")
    settings = {"model": model, **RECIPES[model].settings(), **COMMON, **chosen}
    if settings["batch"] is not None and settings["shard"] == "contiguous" and "shard" not in chosen:
        settings["shard"] = "strided"  # then small steps are the same for any number of ranks
    return settings


def fault(settings: Mapping[str, Any]) -> str | None:
    """Return why these settings do not fit together, or None; before any data set is fetched."""
    model, chosen = settings["model"], settings["data"]
    if chosen not in RECIPES[model].data:
        fitting = ", ".join(RECIPES[model].data)
        return f"the model {model!r} does not fit the data set {chosen!r}; use --data {fitting}"
    if settings["augment"] and RECIPES[model].shape is None:
        return f"--augment shifts images, and the model {model!r} takes flat samples"
    return None


def command_line(settings: Mapping[str, Any], ranks: int) -> str:
    """Return the command that repeats a run with these settings; its --out comes last, without a folder."""
    words = ["mpiexec", "-n", str(ranks), "labkit", "train"]
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            if value != COMMON.get(name):
                words.append(option if value else option.replace("--", "--no-", 1))
        elif isinstance(value, (list, tuple)):
            words += [word for entry in value for word in (option, str(entry))]
        elif value is not None:
            words += [option, str(value)]
    return shlex.join([*words, "--out"])
