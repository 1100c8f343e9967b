"""Callbacks: objects that `train` calls during a run to record, to print or to slow down a rank."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from labkit.nn import Model
from labkit.train.steps import Epoch, Step

MOST_NAMES = 2  # W and b; a line of output has no room for more
ALL = "all"  # the name under which the whole gradient of a model with more parameters is measured


class Callback:
    """Methods that `train` calls on every rank during a run; override those that you need.

    A run's callbacks are called in the order in which `train` got them.
    """

    # True if `after_backward` reads `model.grads`, and `after_average` too. Then averaging cannot overlap
    # with the backward pass, because it would change the gradient meanwhile: `train` refuses it.
    reads_gradients = False

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

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned on this rank before the break. Collective."""


class CallbackList(Callback):
    """Several callbacks as one: each method calls that of all of them, in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks
        self.reads_gradients = any(each.reads_gradients for each in callbacks)

    def before_step(self) -> None:
        for each in self.callbacks:
            each.before_step()

    def after_backward(self, model: Model, weight: float) -> None:
        for each in self.callbacks:
            each.after_backward(model, weight)

    def after_average(self, model: Model, global_batch: int) -> None:
        for each in self.callbacks:
            each.after_average(model, global_batch)

    def after_step(self, step: Step) -> None:
        for each in self.callbacks:
            each.after_step(step)

    def after_epoch(self, model: Model, epoch: Epoch) -> None:
        for each in self.callbacks:
            each.after_epoch(model, epoch)

    def state(self) -> dict[str, np.ndarray]:
        return {f"{own}/{name}": array for own, each in self._named() for name, array in each.state().items()}

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        for own, each in self._named():
            if found := {key[len(own) + 1 :]: state[key] for key in state if key.startswith(f"{own}/")}:
                each.resume(found)

    def _named(self) -> Iterator[tuple[str, Callback]]:
        """Yield each callback with a name that does not depend on callbacks of other classes."""
        seen: Counter[str] = Counter()
        for each in self.callbacks:
            kind = type(each).__name__
            seen[kind] += 1
            yield f"{kind}-{seen[kind]}", each


class Contributions(Callback):
    """Measure what each rank contributes to the gradient; costs two passes over the gradient per step.

    It is measured for each parameter of a model with at most MOST_NAMES of them, else for the whole gradient.
    """

    reads_gradients = True

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
        named = len(model.shapes) <= MOST_NAMES
        parts, sums = (model.views(array) if named else {ALL: array} for array in (self._own, self._all))
        weight = self._weight or math.nan  # a rank without samples has no gradient of its own
        epoch.gradient_norm = {name: float(np.linalg.norm(part)) / weight for name, part in parts.items()}
        epoch.gradient_mean = {name: float(part.mean()) / weight for name, part in parts.items()}
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
