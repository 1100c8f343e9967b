"""The experiments of the reports as settings; comparison.py has the figures that the reports print.

Report A trains a linear model, and report B proposes three improvements of it; report C trains VGG-11 in four
set-ups, report D a small CNN with two averaging algorithms, and report E LeNet-5 with all-reduces and a ring
reduce. The reports do not state all settings: where one is missing, the value here is marked as ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """An experiment: its settings, and the number of ranks and the data set of the report.

    Files of the data set are used where they are in the cache; elsewhere the embedded digits take their
    place, with the settings `on_digits`. The report's tables have its figures under the name `set_up`;
    `against` is the preset whose run takes their place for a report without figures. The `hint` on what to
    try next ends the output.
    """

    report: str
    about: str
    ranks: int
    data: str
    settings: dict[str, Any]
    set_up: str = ""
    against: str = ""
    on_digits: dict[str, Any] = field(default_factory=dict)
    hint: str = ""

    def on(self, data: str) -> dict[str, Any]:
        """Return the settings on a data set."""
        return {"data": data, **self.settings, **(self.on_digits if data != self.data else {})}


_COMMON = {"lr": 0.01, "lr_schedule": "constant", "shard": "strided", "augment": False}
# The learning rate follows from the printed gradients: how much those of one epoch change those of the next.
_A = {**_COMMON, "model": "linear", "lr": 0.001, "shard": "contiguous", "epochs": 10, "check_weights": False}
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

_A_HINT = (
    "The report's data are random numbers that it does not print; ours are drawn anew in the same way. So\n"
    "compare signs and sizes, not digits: rank 2's targets do not fit the others'."
)
_B_HINT = (
    "Equal contributions do not make training better: balanced data leave the global loss as it is. Only\n"
    "the hyperparameters change it. Tracking changes the times and no other number."
)
_D_HINT = (
    "On two hosts: labkit hosts up --n 2 && labkit hosts run labkit train --preset {}\n"
    "The sum instead of the mean (twice the learning rate on two ranks): add --aggregate sum."
)
_E_HINT = (
    "All algorithms compute the same mean, so their curves agree. The others learn faster only because\n"
    "they take more steps: try --batch 50. Report E averages after stepping: try --average-after-step."
)


def _b(about: str, **settings: Any) -> Preset:
    return Preset("B", about, 4, "report-a", {**_A, **settings}, against="report-a", hint=_B_HINT)


def _c(set_up: str, about: str, ranks: int = 4, **settings: Any) -> Preset:
    return Preset("C", about, ranks, "cifar10", {**_C, **settings}, set_up)


def _d(set_up: str, about: str, algorithm: str) -> Preset:
    hint = _D_HINT.format(f"report-d-{set_up}")
    settings = {**_D, "algorithm": algorithm}
    return Preset("D", about, 2, "mnist", settings, set_up, on_digits={"epochs": 20}, hint=hint)


def _e(set_up: str, about: str, algorithm: str, shard: str) -> Preset:
    settings = {**_E, "algorithm": algorithm, "shard": shard}
    return Preset("E", about, 4, "mnist", settings, set_up, hint=_E_HINT)


PRESETS: dict[str, Preset] = {
    "report-a": Preset("A", "one rank's data do not fit the others'", 4, "report-a", _A, hint=_A_HINT),
    "report-b-balanced": _b("first improvement: the same data, dealt out evenly", shard="strided"),
    "report-b-tuned": _b("second improvement: other hyperparameters", lr=0.1, momentum=0.9),
    "report-b-tracked": _b("third: each step's loss and equal weights", log_every=1, check_weights=True),
    "report-c-1": _c("1", "part 1: one rank trains on all samples of a batch", ranks=1),
    "report-c-2a": _c(
        "2a", "part 2a: gather and scatter through rank 0", algorithm="gather-scatter", buffers="leave"
    ),
    "report-c-2b": _c("2b", "part 2b: all-reduce", algorithm="mpi", buffers="leave"),
    "report-c-3": _c(
        "3",
        "part 3: buckets, overlap and rank 0's buffers, as DistributedDataParallel does it",
        algorithm="mpi",
        overlap=True,
        bucket_mb=25.0,
        buffers="broadcast",
    ),
    "report-d-allreduce": _d("allreduce", "gradients averaged by all-reduce", "mpi"),
    "report-d-allgather": _d("allgather", "gradients averaged by allgather and a local mean", "allgather"),
    # The file of part a is called ring reduce; its text describes an all-reduce.
    "report-e-allreduce": _e("allreduce", "part a: all-reduce", "mpi", "contiguous"),
    "report-e-ring-reduce": _e("allreduce", "part a by its name: ring reduce", "ring-reduce", "contiguous"),
    "report-e-ring": _e("ring", "part b: ring all-reduce", "ring", "distributed-sampler"),
}
