"""The record of a step: what one rank did in it, and when; epochs are added up from steps.

Tables, traces and figures are made from these records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple


class BucketTimes(NamedTuple):
    """The averaging of one bucket (from 0): when (s) the rank had completed it, and it began and ended."""

    bucket: int
    complete: float
    begin: float
    end: float


@dataclass(slots=True)
class Step:
    """One step of one rank. `train` makes it when the step begins and fills it in while the step goes on.

    `number` counts the steps of the run from 1, over all epochs. The times (s, perf_counter) bound the parts
    of the step. From `begin` to `ready` the rank computes its gradient. Until `start` it waits for the last
    rank to be ready. Until `end` the ranks average their gradients, and this rank cannot go on: if averaging
    overlaps with the backward pass, this is the exposed communication. Until `done` the rank updates its
    parameters. It is idle between `done` and the next `begin`; this includes the bookkeeping between epochs.

    `gather_s` is how long (s) the rank waited for parameters that other ranks hold, in the spans `gathers`:
    within its passes, or after its update. It is exposed communication, too.

    With buckets, `layers` has, for each layer from the last to the first, where its gradient starts and when
    (s) its backward pass had ended, and `transfers` the averaging of each bucket.

    `loss` is the mean over the rank's `local_batch` samples (0 if it has none), before the step, and
    `correct` how many of these samples were predicted correctly.
    """

    epoch: int
    number: int
    rank: int
    begin: float = 0.0
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0
    done: float = 0.0
    layers: tuple[tuple[int, float], ...] = ()
    transfers: tuple[BucketTimes, ...] = ()
    gathers: tuple[tuple[float, float], ...] = ()
    gather_s: float = 0.0
    loss: float = 0.0
    correct: int = 0
    local_batch: int = 0
    global_batch: int = 0
    lr: float = 0.0

    @property
    def fraction(self) -> float:
        """Return this rank's fraction of the global batch."""
        return self.local_batch / self.global_batch

    @property
    def compute_s(self) -> float:
        """Return how long (s) the rank computed its gradient and updated its parameters."""
        return self.ready - self.begin + self.done - self.end - self.gather_s

    @property
    def wait_s(self) -> float:
        """Return how long (s) the rank waited for the last rank to be ready."""
        return self.start - self.ready

    @property
    def transfer_s(self) -> float:
        """Return how long (s) the rank averaged; if that overlaps, its exposed communication."""
        return self.end - self.start + self.gather_s

    def gathered(self, begin: float, end: float) -> None:
        """Note that the rank waited for parameters from `begin` to `end` (s)."""
        self.gathers = (*self.gathers, (begin, end))
        self.gather_s += end - begin

    def spans(self) -> list[tuple[str, float, float]]:
        """Return what the rank did, with the begin and end (s) of each part."""
        spans = []
        for begin, end in (self.begin, self.ready), (self.end, self.done):
            waits = [(first, last) for first, last in self.gathers if begin <= first and last <= end]
            times = [begin, *(time for wait in waits for time in wait), end]
            spans += [("compute", *span) for span in zip(times[::2], times[1::2], strict=True)]
            spans += [("transfer", *wait) for wait in waits]
        averaging = [("wait", self.ready, self.start), ("transfer", self.start, self.end)]
        return sorted(spans + averaging, key=itemgetter(1, 2))

    def shifted(self, clock: Callable[[float], float]) -> Step:
        """Return the step with each time t replaced by clock(t)."""
        names = "begin", "ready", "start", "end", "done"
        bounds: dict[str, Any] = {name: clock(getattr(self, name)) for name in names}
        return replace(
            self,
            **bounds,
            layers=tuple((start, clock(end)) for start, end in self.layers),
            transfers=tuple(
                BucketTimes(transfer.bucket, *map(clock, transfer[1:])) for transfer in self.transfers
            ),
            gathers=tuple((clock(begin), clock(end)) for begin, end in self.gathers),
        )


@dataclass
class Epoch:
    """What one rank measured in one epoch (counted from 1), added up from its steps.

    `local_loss` is the mean over this rank's samples, `global_loss` over those of all ranks. For classifiers,
    `local_accuracy` and `global_accuracy` are the fractions of these samples whose class was predicted
    correctly; None for regressions. Loss and accuracy of each batch come from its forward pass in training,
    so before its own step. All four are known when the epoch ends; until then there are the sums over this
    rank's samples, `loss_sum` and `correct`. `steps` is how many steps are done.

    `samples` is how many samples this rank trained on, and `time_s` the time (s) of the epoch's steps, with
    what callbacks do in them. `wait_s` and `transfer_s` are the sums of the steps' (`Step`); in epoch 1,
    `wait_s` includes the wait at the start of `train` until the last rank has called it.

    `drift` is measured only if each rank steps before averaging: the largest ‖w_r - w_0‖ / ‖w_0‖ of all ranks
    r, where w_r are the parameters of rank r.

    `Contributions` fills in the dictionaries, by parameter name, or under the name ALL for the whole
    gradient of a model with many parameters; without it they are empty. `gradient_norm` and `gradient_mean`
    are the norm and the mean entry of this rank's own mean gradient in the epoch. `contribution` is
    ‖this rank's part‖ / ‖sum of all ranks' parts‖, as a fraction. A median has no parts: for it,
    `contribution` is ‖the part that this rank would have in the mean‖ / ‖the median‖.
    """

    epoch: int
    rank: int
    local_loss: float = math.nan
    global_loss: float = math.nan
    wait_s: float = 0.0
    transfer_s: float = 0.0
    local_accuracy: float | None = None
    global_accuracy: float | None = None
    steps: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    time_s: float = 0.0
    drift: float | None = None
    gradient_norm: dict[str, float] = field(default_factory=dict)
    gradient_mean: dict[str, float] = field(default_factory=dict)
    contribution: dict[str, float] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Count a step, and add it to the sums."""
        self.steps += 1
        self.samples += step.local_batch
        self.loss_sum += step.local_batch * step.loss
        self.correct += step.correct
        self.wait_s += step.wait_s
        self.transfer_s += step.transfer_s
