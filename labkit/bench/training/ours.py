"""Our set-ups: each measurement is a call of `labkit.train.train`, the function that users call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.bench.pytorch import LR, MOMENTUM, WEIGHT_DECAY
from labkit.bench.training import cases
from labkit.bench.training.cases import Case, Run, StepTimes
from labkit.comm import ALGORITHMS
from labkit.nn import SGD, Model
from labkit.train import Batches, Buckets, Callback, Iteration, train

Samples = tuple[np.ndarray, np.ndarray]


class _Recorder(Callback):
    """Record the times of all steps."""

    def __init__(self, report: Callable[[], None]) -> None:
        self.steps: list[StepTimes] = []
        self._report = report

    def after_step(self, iteration: Iteration) -> None:
        step = iteration
        self.steps.append(StepTimes(step.begin, step.ready, step.start, step.end, step.done))
        self._report()


def our_run(
    comm: MPI.Intracomm,
    model: Model,
    case: Case,
    samples: Samples,
    report: Callable[[], None],
    *,
    one_node: bool,
) -> Run:
    """Return a function that trains on this rank's samples, with all ranks of `comm`, and returns the times.

    `report` is called after each step. Collective.
    """
    batch = case.batch
    if case.setup == cases.NO_AVERAGING:  # each rank trains by itself, with its local batch
        comm, batch = MPI.COMM_SELF, batch // case.p
    batches = Batches(comm, *samples, batch)
    options = _options(case.setup, one_node)

    def run() -> Sequence[StepTimes]:
        recorder = _Recorder(report)
        sgd = SGD(model.params, MOMENTUM, WEIGHT_DECAY)
        train(
            comm,
            model,
            batches,
            epochs=1,
            lr=LR,
            optimizer=sgd,
            buffers="leave",
            check_weights=False,
            callbacks=[recorder],
            **options,
        )
        return recorder.steps

    return run


def _no_averaging(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Leave the gradient as it is."""


def _options(setup: str, one_node: bool) -> dict[str, Any]:
    """Return the options of `train` that make a set-up."""
    algorithms = {
        cases.ALONE: "mpi",
        cases.ROOT: "root",
        cases.ALLREDUCE: "mpi",
        cases.SHARED_MEMORY: "shared-memory",
        cases.RING: "ring",
        cases.OVERLAP: cases.without_overlap(one_node),
    }
    if setup == cases.NO_AVERAGING:
        return {"algorithm": _no_averaging}
    return {
        "algorithm": ALGORITHMS[algorithms[setup]],
        "buckets": Buckets() if setup == cases.OVERLAP else None,
    }
