"""The experiments of the reports as settings, and the figures that the reports print for them.

Report C trains VGG-11 in four set-ups, report D a small CNN with two averaging algorithms, and report E
LeNet-5 with two all-reduce algorithms. The reports do not state all settings: where one is missing, the value
here is marked as ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit import data, reports
from labkit.comm import CollectiveError

IMAGES_PER_PERCENT = 10_000 / 100  # the test sets of CIFAR-10 and of MNIST have 10,000 images


@dataclass(frozen=True)
class Preset:
    """An experiment: its number of ranks, its settings, and what its report prints.

    `cached` is the data set of the report, used where it is in the cache; elsewhere the embedded digits take
    its place, with the settings `on_digits`. `printed` holds the report's figures (`labkit.reports`), one for
    each rank or one for all, under the names that `labkit.train.experiment.comparison` gives to the
    measurements. The `hint` on what to try next ends the output.
    """

    report: str
    about: str
    ranks: int
    cached: str
    settings: dict[str, Any]
    on_digits: dict[str, Any] = field(default_factory=dict)
    printed: dict[str, list[float]] = field(default_factory=dict)
    hint: str = ""


def _figures_of_c(set_up: str) -> dict[str, list[float]]:
    """Return what report C prints for a set-up."""
    of_ranks, of_nodes = _rows("c_ranks", "set_up", set_up), _rows("c_shares", "set_up", set_up)
    return _known(
        {
            "loss, iteration 20": of_ranks["loss_20"],
            "loss, iteration 40": of_ranks["loss_40"],
            "training accuracy (%)": of_ranks["training_accuracy_percent"],
            "test accuracy (%)": of_ranks["test_correct"] / IMAGES_PER_PERCENT,
            "time per iteration (s)": of_ranks["time_s"],
            "compute (%)": of_nodes["compute_percent"],
            "exposed communication (%)": of_nodes["communication_percent"],
        }
    )


def _figures_of_d(algorithm: str) -> dict[str, list[float]]:
    """Return what report D prints for an averaging algorithm."""
    of_ranks = _rows("d_runs", "algorithm", algorithm)
    accuracies = of_ranks["test_correct"] / IMAGES_PER_PERCENT
    return _known({"test accuracy (%)": accuracies, "training time (s)": of_ranks["time_s"]})


def _figures_of_e(algorithm: str) -> dict[str, list[float]]:
    """Return what report E prints for an algorithm; of the ring's last epoch, each rank's figures."""
    run = _rows("e_runs", "algorithm", algorithm)
    last = reports.read("e_ring_last") if algorithm == "ring" else run
    return _known(
        {
            "loss, epoch 1": run["loss_1"],
            "loss, epoch 100": last["loss_100"],
            "accuracy, epoch 1 (%)": run["accuracy_1_percent"],
            "accuracy, epoch 100 (%)": last["accuracy_100_percent"],
            "training time (s)": run["time_s"],
        }
    )


def _rows(table: str, column: str, value: str) -> dict[str, np.ndarray]:
    """Return the columns of a report's table, in the rows that have this value in a column."""
    columns = reports.read(table)
    return {name: entries[columns[column] == value] for name, entries in columns.items()}


def _known(figures: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """Return the figures that the report prints."""
    return {name: values.tolist() for name, values in figures.items() if not np.isnan(values).any()}


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
        printed=_figures_of_c("1"),
    ),
    "report-c-2a": Preset(
        "C",
        "part 2a: gather and scatter through rank 0",
        4,
        "cifar10",
        {**_C, "algorithm": "root", "buffers": "leave"},
        printed=_figures_of_c("2a"),
    ),
    "report-c-2b": Preset(
        "C",
        "part 2b: all-reduce",
        4,
        "cifar10",
        {**_C, "algorithm": "mpi", "buffers": "leave"},
        printed=_figures_of_c("2b"),
    ),
    "report-c-3": Preset(
        "C",
        "part 3: buckets, overlap and rank 0's buffers, as DistributedDataParallel does it",
        4,
        "cifar10",
        {**_C, "algorithm": "mpi", "overlap": True, "bucket_mb": 25.0, "buffers": "broadcast"},
        printed=_figures_of_c("3"),
    ),
    "report-d-allreduce": Preset(
        "D",
        "gradients averaged by all-reduce",
        2,
        "mnist",
        {**_D, "algorithm": "mpi"},
        on_digits={"epochs": 20},
        hint=_TWO_HOSTS.format("report-d-allreduce"),
        printed=_figures_of_d("allreduce"),
    ),
    "report-d-allgather": Preset(
        "D",
        "gradients averaged by allgather and a local mean",
        2,
        "mnist",
        {**_D, "algorithm": "allgather"},
        on_digits={"epochs": 20},
        hint=_TWO_HOSTS.format("report-d-allgather"),
        printed=_figures_of_d("allgather"),
    ),
    "report-e-allreduce": Preset(
        "E",
        "part a: all-reduce",
        4,
        "mnist",
        {**_E, "algorithm": "mpi"},
        hint=_E_HINT,
        printed=_figures_of_e("allreduce"),
    ),
    "report-e-ring": Preset(
        "E",
        "part b: ring all-reduce",
        4,
        "mnist",
        {**_E, "algorithm": "ring"},
        hint=_E_HINT,
        printed=_figures_of_e("ring"),
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
