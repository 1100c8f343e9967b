"""The experiments of the reports as settings; comparison.py has the figures that the reports print.

Report C trains VGG-11 in four set-ups, report D a small CNN with two averaging algorithms, and report E
LeNet-5 with two all-reduce algorithms. The reports do not state all settings: where one is missing, the value
here is marked as ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """An experiment: its number of ranks and its settings.

    `cached` is the data set of the report, used where it is in the cache; elsewhere the embedded digits take
    its place, with the settings `on_digits`. The `hint` on what to try next ends the output.
    """

    report: str
    about: str
    ranks: int
    cached: str
    settings: dict[str, Any]
    on_digits: dict[str, Any] = field(default_factory=dict)
    hint: str = ""


_COMMON = {"lr": 0.01, "lr_schedule": "constant", "shard": "strided", "augment": False}
# The optimiser's settings are ours; the report does not state them.
_C = {
    **_COMMON,
    "model": "vgg11",
    "batch": 256,
    "iterations": 40,
    "log_every": 20,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "contributions": False,  # they take time, and part 3 cannot measure them
}
# Batch and epochs are ours: 920 iterations, the last that the report prints, are an epoch of 2 × 32 samples.
_D = {
    **_COMMON,
    "model": "mnist-cnn",
    "batch": 64,
    "epochs": 2,
    "log_every": 20,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "aggregate": "mean",
}
# 100 samples in a step, 25 on each rank, are ours: the report does not state its batch.
_E = {
    **_COMMON,
    "model": "lenet5",
    "samples": 100,
    "batch": 100,
    "epochs": 100,
    "momentum": 0.0,
    "weight_decay": 0.0,
}

_TWO_HOSTS = (
    "On two hosts: labkit hosts up --n 2, then labkit hosts run labkit train --preset {}.\n"
    "The sum instead of the mean (twice the learning rate on two ranks): add --aggregate sum."
)
_E_HINT = (
    "Both algorithms compute the same mean, so their curves agree. The others learn faster only because\n"
    "they take more steps: try --batch 50. Report E averages after stepping: try --average-after-step."
)


def _c(about: str, ranks: int = 4, **own: Any) -> Preset:
    return Preset("C", about, ranks, "cifar10", {**_C, **own})


def _d(about: str, algorithm: str) -> Preset:
    hint = _TWO_HOSTS.format(f"report-d-{algorithm.replace('mpi', 'allreduce')}")
    return Preset("D", about, 2, "mnist", {**_D, "algorithm": algorithm}, {"epochs": 20}, hint)


def _e(about: str, algorithm: str) -> Preset:
    return Preset("E", about, 4, "mnist", {**_E, "algorithm": algorithm}, hint=_E_HINT)


PRESETS: dict[str, Preset] = {
    "report-c-1": _c("part 1: one rank trains on all samples of a batch", ranks=1),
    "report-c-2a": _c("part 2a: gather and scatter through rank 0", algorithm="root", buffers="leave"),
    "report-c-2b": _c("part 2b: all-reduce", algorithm="mpi", buffers="leave"),
    "report-c-3": _c(
        "part 3: buckets, overlap and rank 0's buffers, as DistributedDataParallel does it",
        algorithm="mpi",
        overlap=True,
        bucket_mb=25.0,
        buffers="broadcast",
    ),
    "report-d-allreduce": _d("gradients averaged by all-reduce", "mpi"),
    "report-d-allgather": _d("gradients averaged by allgather and a local mean", "allgather"),
    "report-e-allreduce": _e("part a: all-reduce", "mpi"),
    "report-e-ring": _e("part b: ring all-reduce", "ring"),
}
