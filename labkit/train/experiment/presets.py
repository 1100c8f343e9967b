"""The experiments of the reports as settings, and the figures that the reports print for them.

Report C trains VGG-11 in four set-ups, report D a small CNN with two ways to average, report E LeNet-5 with
two all-reduce algorithms. The reports do not state all settings: where one is missing, the value here is
marked as ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from labkit import data
from labkit.comm import CollectiveError


@dataclass(frozen=True)
class Preset:
    """An experiment: its number of ranks, its settings, and what its report prints.

    `cached` is the data set of the report, used where it is in the cache; elsewhere the embedded digits take
    its place, with the settings `on_digits`. `printed` holds the report's figures: a number, or one for each
    rank, under the names that `labkit.train.experiment.comparison` gives to the measurements. The `hint` on
    what to try next ends the output.
    """

    report: str
    about: str
    ranks: int
    cached: str
    settings: dict[str, Any]
    on_digits: dict[str, Any] = field(default_factory=dict)
    printed: dict[str, Any] = field(default_factory=dict)
    hint: str = ""


# The optimiser's settings are ours; the report does not state them.
_C = {
    "model": "vgg11",
    "batch": 256,
    "iterations": 40,
    "log_every": 20,
    "lr": 0.01,
    "lr_schedule": "constant",
    "shard": "strided",
    "augment": False,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "contributions": False,  # they take time, and part 3 cannot measure them
}
# Batch and epochs are ours: 920 iterations, the last that the report prints, are an epoch of 2 × 32 samples.
_D = {
    "model": "mnist-cnn",
    "batch": 64,
    "epochs": 2,
    "log_every": 20,
    "lr": 0.01,
    "lr_schedule": "constant",
    "shard": "strided",
    "augment": False,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "aggregate": "mean",
}
# 100 samples in a step, 25 on each rank, are ours: the report does not state its batch.
_E = {
    "model": "lenet5",
    "samples": 100,
    "batch": 100,
    "epochs": 100,
    "lr": 0.01,
    "lr_schedule": "constant",
    "shard": "strided",
    "augment": False,
    "momentum": 0.0,
    "weight_decay": 0.0,
}

_TWO_HOSTS = (
    "On two hosts: labkit hosts up --n 2, then labkit hosts run labkit train --preset {}.\n"
    "The sum instead of the mean (twice the learning rate on two ranks): add --aggregate sum."
)
_E_HINT = (
    "Both algorithms compute the same mean, so their curves agree. Others learn faster only by more\n"
    "steps: try --batch 50. Report E averages after stepping: try --average-after-step."
)

PRESETS: dict[str, Preset] = {
    "report-c-1": Preset(
        "C",
        "part 1: one rank trains on all samples of a batch",
        1,
        "cifar10",
        {**_C},
        printed={
            "loss, iteration 20": 3.1989,
            "loss, iteration 40": 2.7268,
            "training accuracy (%)": 11.16,
            "test accuracy (%)": 10.50,
            "time per iteration (s)": 2.504030,
            "compute (%)": 85,
        },
    ),
    "report-c-2a": Preset(
        "C",
        "part 2a: gather and scatter through rank 0",
        4,
        "cifar10",
        {**_C, "algorithm": "root", "buffers": "leave"},
        printed={
            "loss, iteration 20": [3.7764, 3.6924, 3.0012, 3.6006],
            "loss, iteration 40": [2.8082, 2.3976, 2.8942, 2.9067],
            "training accuracy (%)": [11.25, 10.62, 11.29, 11.52],
            "test accuracy (%)": [12.70, 12.69, 12.82, 12.80],
            "time per iteration (s)": [1.173583, 1.744663, 1.745757, 1.744380],
            "compute (%)": 46,
        },
    ),
    "report-c-2b": Preset(
        "C",
        "part 2b: all-reduce",
        4,
        "cifar10",
        {**_C, "algorithm": "mpi", "buffers": "leave"},
        printed={
            "loss, iteration 20": [3.6166, 3.4846, 2.8838, 3.3967],
            "loss, iteration 40": [2.6137, 2.6006, 2.9676, 2.7887],
            "training accuracy (%)": [11.48, 10.55, 11.48, 11.48],
            "test accuracy (%)": [10.83, 10.89, 10.84, 10.83],
            "time per iteration (s)": [0.949686, 1.504609, 1.505896, 1.505127],
            "compute (%)": 45,
            "exposed communication (%)": 17,
        },
    ),
    "report-c-3": Preset(
        "C",
        "part 3: buckets, overlap and rank 0's buffers, as DistributedDataParallel does it",
        4,
        "cifar10",
        {**_C, "algorithm": "mpi", "overlap": True, "bucket_mb": 25.0, "buffers": "broadcast"},
        printed={
            "loss, iteration 20": [3.7836, 3.6995, 2.9954, 3.5791],
            "loss, iteration 40": [2.7283, 2.2727, 2.8930, 2.7248],
            "training accuracy (%)": [11.21, 10.62, 11.33, 11.60],
            "test accuracy (%)": [12.77, 12.77, 12.77, 12.77],
            "time per iteration (s)": [0.885421, 1.402434, 1.403214, 1.401893],
            "compute (%)": 45,
            "exposed communication (%)": 17,
        },
    ),
    "report-d-allreduce": Preset(
        "D",
        "gradients averaged by all-reduce",
        2,
        "mnist",
        {**_D, "algorithm": "mpi"},
        on_digits={"epochs": 20},
        hint=_TWO_HOSTS.format("report-d-allreduce"),
        printed={"test accuracy (%)": [98.29, 98.29], "training time (s)": [44.210149, 44.217112]},
    ),
    "report-d-allgather": Preset(
        "D",
        "gradients averaged by allgather and a local mean",
        2,
        "mnist",
        {**_D, "algorithm": "allgather"},
        on_digits={"epochs": 20},
        hint=_TWO_HOSTS.format("report-d-allgather"),
        printed={"test accuracy (%)": [98.05, 98.05], "training time (s)": [75.122852, 75.135287]},
    ),
    "report-e-allreduce": Preset(
        "E",
        "part a: all-reduce",
        4,
        "mnist",
        {**_E, "algorithm": "mpi"},
        hint=_E_HINT,
        printed={
            "loss, epoch 1": 2.29,
            "loss, epoch 100": 1.48,
            "accuracy, epoch 1 (%)": 9,
            "accuracy, epoch 100 (%)": 66,
            "training time (s)": 3.03,
        },
    ),
    "report-e-ring": Preset(
        "E",
        "part b: ring all-reduce",
        4,
        "mnist",
        {**_E, "algorithm": "ring"},
        hint=_E_HINT,
        printed={
            "loss, epoch 1": 2.27,
            "loss, epoch 100": [0.6299, 0.5483, 0.5488, 0.7275],
            "accuracy, epoch 100 (%)": [92, 100, 84, 88],
            "training time (s)": 2.80,
        },
    ),
}


def chosen(comm: MPI.Intracomm, name: str | None) -> dict[str, Any]:
    """Return the settings of a preset; none for None. Collective.

    Raise CollectiveError on every rank for another number of ranks than the preset's.
    """
    if name is None:
        return {}
    preset = PRESETS[name]
    if comm.size != preset.ranks:
        raise CollectiveError(
            f"the preset {name} runs on {preset.ranks} rank{'s' * (preset.ranks > 1)}, as in report "
            f"{preset.report}, got {comm.size}: mpiexec -n {preset.ranks} labkit train --preset {name}"
        )
    cached = comm.allreduce(int(data.is_cached(preset.cached)), MPI.MIN)
    on_digits = {} if cached else {"data": "digits", **preset.on_digits}
    return {"data": preset.cached, **preset.settings, **on_digits}
