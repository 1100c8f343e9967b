"""Callbacks: objects that `train` calls during a run to record, to print or to slow down a rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit.nn import Model


@dataclass
class Epoch:
    """What one rank measured in one epoch (counted from 1).

    `local_loss` is the mean over this rank's samples, `global_loss` over those of all ranks; the loss of each
    batch is taken before its own step. `wait_s` is the time (s) at the barrier before averaging, until the
    last rank is ready; in epoch 1 it includes the wait at the start of `train` until the last rank has called
    it. `transfer_s` is the time (s) of averaging itself.

    `Contributions` fills in the dictionaries, by parameter name; without it they are empty. `gradient_mean`
    is the mean entry of this rank's own gradient over the epoch. `contribution` is
    ‖this rank's part‖ / ‖sum of all ranks' parts‖, as a fraction. A median has no parts: for it,
    `contribution` is ‖the part that this rank would have in the mean‖ / ‖the median‖.
    """

    epoch: int
    rank: int
    local_loss: float
    global_loss: float
    wait_s: float
    transfer_s: float
    gradient_mean: dict[str, float] = field(default_factory=dict)
    contribution: dict[str, float] = field(default_factory=dict)


class Callback:
    """Methods that `train` calls on every rank during a run; override those that you need.

    A run's callbacks are called in the order in which `train` got them.
    """

    def before_step(self) -> None:
        """Act before a step. The time that this takes counts as idle."""

    def after_backward(self, model: Model, weight: float) -> None:
        """Act when `model.grads` holds this rank's own gradient. The time counts as computing.

        `weight` is how many samples the gradient counts for in the average.
        """

    def after_average(self, model: Model, global_batch: int) -> None:
        """Act when `model.grads` holds the averaged gradient of `global_batch` samples."""

    def after_step(self, epoch: int, times: Sequence[float]) -> None:
        """Act after a step. `times` (s, perf_counter) are begin, ready, start, end and done of `Step`."""

    def after_epoch(self, model: Model, epoch: Epoch) -> None:
        """Act after an epoch. A callback may add to the record of the epoch."""


class Contributions(Callback):
    """Measure what each rank contributes to the gradient; costs two passes over the gradient per step."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Sums over the samples of an epoch: of this rank's gradients, and of all ranks'.
        self._own: np.ndarray | None = None
        self._all: np.ndarray | None = None
        self._weight = 0.0

    def after_backward(self, model: Model, weight: float) -> None:
        if self._own is None:
            self._own, self._all = np.zeros_like(model.grads), np.zeros_like(model.grads)
        self._own += weight * model.grads
        self._weight += weight

    def after_average(self, model: Model, global_batch: int) -> None:
        self._all += global_batch * model.grads

    def after_epoch(self, model: Model, epoch: Epoch) -> None:
        assert self._own is not None and self._all is not None  # an epoch has at least one step
        parts, sums = model.views(self._own), model.views(self._all)
        epoch.gradient_mean = {name: float(part.mean()) / self._weight for name, part in parts.items()}
        epoch.contribution = {name: contribution(parts[name], sums[name]) for name in parts}
        self._reset()


def contribution(part: np.ndarray, total: np.ndarray) -> float:
    """Return ‖part‖ / ‖total‖, as a fraction; NaN if the total is zero.

    `part` is one rank's gradient and `total` the sum over all ranks, of the same shape. If the ranks'
    gradients point in different directions, the sum can be shorter than a part: then that rank's contribution
    is greater than 1.
    """
    length = float(np.linalg.norm(total))
    return float(np.linalg.norm(part)) / length if length else math.nan
