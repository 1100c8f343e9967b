"""What `train` calls during a run: an optimiser, and callbacks that record, print or slow down a rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from labkit.comm.clock import offset
from labkit.nn import Model
from labkit.train.steps import Epoch, Step

MOST_NAMES = 2  # W and b; each has a line of output in each epoch
MOST = 100_000  # steps that are kept, of each rank
TRACED = 500  # of these, how many have the times of layers and buckets, and are in the trace
WITHOUT_SPANS: dict[str, Any] = {"layers": (), "transfers": (), "gathers": ()}
ALL = "all"  # the name under which the whole gradient of a model with more parameters is measured


class Optimizer(Protocol):
    """Anything that updates a model's parameters from its gradients, such as `labkit.nn.SGD`.

    Its `repr` names its settings: a checkpoint is resumed only with the same.
    """

    params: np.ndarray

    def on(self, params: np.ndarray) -> Optimizer:
        """Return one with the same settings for other parameters: in sharded training, for a rank's own."""

    def state(self) -> dict[str, np.ndarray]:
        """Return by name the arrays that it remembers between steps; a resumed run writes to them."""

    def step(self, grads: np.ndarray, lr: float) -> None:
        """Update the parameters in place. Shapes: `grads` (n,), as the parameters."""


class Callback:
    """Methods that `train` calls on every rank during a run; override those that you need.

    A run's callbacks are called in the order in which `train` got them.
    """

    # True if `after_backward` reads `model.grads`, and `after_average` too. Then averaging cannot overlap
    # with the backward pass, because it would change the gradient meanwhile: `train` refuses it.
    reads_gradients = False

    def begin(self, model: Model, held: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Act before the first step; `held` are the arrays of this rank's state, by kind."""

    def before_step(self) -> None:
        """Act before a step. The time that this takes counts as idle."""

    def after_backward(self, model: Model, weight: float) -> None:
        """Act when `model.grads` holds this rank's own gradient. The time counts as computing.

        `weight` is how many samples the gradient counts for in the average. Only a callback that
        `reads_gradients` may rely on the gradient: it may already have been averaged in part.
        """

    def after_average(self, model: Model, global_batch: int) -> None:
        """Act when `model.grads` holds the averaged gradient of `global_batch` samples."""

    def after_step(self, step: Step) -> None:
        """Act after a step."""

    def after_epoch(self, model: Model, epoch: Epoch) -> None:
        """Act after an epoch. A callback may add to the record of the epoch."""

    def state(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps of this callback on this rank. Collective."""
        return {}

    def check(self, state: Mapping[str, np.ndarray], done: int) -> None:
        """Raise ValueError if `state` cannot be what `state` returned on a rank after `done` steps."""

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned on this rank before the break. Collective."""


class Contributions(Callback):
    """Measure what each rank contributes to the gradient; costs two passes over the gradient per step.

    It is measured for each parameter of a model with at most MOST_NAMES of them, else for the whole gradient.
    """

    reads_gradients = True

    def begin(self, model: Model, held: Mapping[str, Sequence[np.ndarray]]) -> None:
        # Sums over the samples of an epoch: of this rank's gradients, and of all ranks'.
        self._sum_of_rank = np.zeros_like(model.grads)
        self._sum_of_all = np.zeros_like(model.grads)
        self._weight = 0.0

    def after_backward(self, model: Model, weight: float) -> None:
        self._sum_of_rank += weight * model.grads
        self._weight += weight

    def after_average(self, model: Model, global_batch: int) -> None:
        self._sum_of_all += global_batch * model.grads

    def after_epoch(self, model: Model, epoch: Epoch) -> None:
        named = len(model.shapes) <= MOST_NAMES
        parts = model.views(self._sum_of_rank) if named else {ALL: self._sum_of_rank}
        sums = model.views(self._sum_of_all) if named else {ALL: self._sum_of_all}
        weight = self._weight or math.nan  # a rank without samples has no gradient of its own
        for name, part in parts.items():
            # The sum is shorter than a part if the ranks' gradients point in different directions.
            length, whole = float(np.linalg.norm(part)), float(np.linalg.norm(sums[name]))
            epoch.gradient_norm[name] = length / weight
            epoch.gradient_mean[name] = float(part.mean()) / weight
            epoch.contribution[name] = length / (whole or math.nan)
        self._sum_of_rank[...] = 0
        self._sum_of_all[...] = 0
        self._weight = 0.0


class Timeline(Callback):
    """Record a run's steps, the first MOST of them: give it to `train` as a callback, then `gather` it.

    The first TRACED steps keep the times of their layers and buckets, too. `total_s` is the time (s) since
    this object was made. Making, saving and gathering a timeline are collective: all compare the ranks'
    clocks, which drift apart. In the timeline of a resumed run, the steps after the break follow at once on
    those before it, which have no times of layers and buckets.
    """

    def __init__(self, comm: MPI.Intracomm, clock: Callable[[], float] = perf_counter) -> None:
        self._comm = comm
        self._clock = clock
        self.steps: list[Step] = []  # since the ranks compared their clocks
        self._earlier: list[Step] = []  # on the one clock of all ranks
        self._before_s = 0.0  # the total time before a break
        self._ahead = 0.0  # how far the clock before a break is ahead of rank 0's
        self._began = self._compare()

    @property
    def total_s(self) -> float:
        return self._before_s + self._clock() - self._began[0]

    def after_step(self, step: Step) -> None:
        if step.number <= MOST:
            self.steps.append(step if step.number <= TRACED else replace(step, **WITHOUT_SPANS))

    def gather(self) -> list[Step]:
        """Return the steps of all ranks, by step and rank, on rank 0; an empty list elsewhere. Collective.

        Their times are on the clock of rank 0 and count from the first `begin`.
        """
        steps = [step for steps in self._comm.gather(self._steps_on_one_clock()) or [] for step in steps]
        zero = min((step.begin for step in steps), default=0.0)
        steps.sort(key=lambda step: (step.number, step.rank))
        return [step.shifted(lambda time: time - zero) for step in steps]

    def state(self) -> dict[str, np.ndarray]:
        """Return this rank's steps so far, an array for each field."""
        names = [field.name for field in fields(Step) if field.name not in WITHOUT_SPANS]
        steps = self._steps_on_one_clock()
        columns = {name: np.array([getattr(step, name) for step in steps]) for name in names}
        return {**columns, "total_s": np.array(self.total_s)}

    def check(self, state: Mapping[str, np.ndarray], done: int) -> None:
        """Raise ValueError unless `state` has a number for each field of the same steps.

        If the number of ranks has changed, the state holds only the steps since the last change.
        """
        names = [field.name for field in fields(Step) if field.name not in WITHOUT_SPANS]
        steps = min(done, MOST, np.size(state.get("number", ())))
        for name in sorted({*names, "total_s"} | state.keys()):
            array, shape = state.get(name), () if name == "total_s" else (steps,)
            if name not in (*names, "total_s"):
                raise ValueError(f"expected times of steps, found {name}")
            if array is None or array.shape != shape or array.dtype.kind not in "if":
                raise ValueError(f"expected {name} of {steps} steps, found another array or none")

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on after these steps."""
        columns = {name: array.tolist() for name, array in state.items()}
        self._before_s = columns.pop("total_s")
        self._earlier = [
            Step(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)
        ]
        end = self._comm.allreduce(max((step.done for step in self._earlier), default=0.0), MPI.MAX)
        self._ahead = end - self._comm.bcast(self._clock())

    def _steps_on_one_clock(self) -> list[Step]:
        """Return this rank's steps on one clock: that of all ranks, and of the steps before a break."""
        (began, first), (now, last) = self._began, self._compare()
        drift = (last - first) / (now - began)
        self._earlier += [
            step.shifted(lambda time: time + (first + drift * (time - began) + self._ahead))
            for step in self.steps
        ]
        self.steps.clear()
        return self._earlier

    def _compare(self) -> tuple[float, float]:
        """Return the time on this rank's clock, and by how much rank 0's clock is ahead of it."""
        ahead = offset(self._comm, self._clock)
        return self._clock(), ahead
