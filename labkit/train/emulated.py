"""Emulated processors: ranks that share cores sleep for the time that computing would take, and are timed.

On shared cores a rank that really computes for longer slows the others down, and two ranks cannot compute at
the same time. Asleep, each rank takes its own time. `labkit.comm.EmulatedComm` does the same for links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.comm import EmulatedComm, Link
from labkit.nn import Classifier, Model
from labkit.train.callbacks import Callback
from labkit.train.steps import Step

Span = tuple[float, float]


class Processor(Callback):
    """Let a rank's gradient take a fixed time per sample, and no less: give it to `train` as a callback."""

    def __init__(self, s_per_sample: float) -> None:
        self.s_per_sample = s_per_sample
        self._began = perf_counter()

    def before_step(self) -> None:
        self._began = perf_counter()

    def after_backward(self, model: Model, weight: float) -> None:
        due = self._began + weight * self.s_per_sample
        sleep(max(0.0, due - perf_counter()))


class StepClock(Callback):
    """Note when each step ends: give it to `train` as a callback."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_step(self, step: Step | None = None) -> None:
        self.times.append(perf_counter())

    def s_per_step(self) -> float:
        """Return the shortest time of a step (s): other programs can only make a step longer."""
        if len(self.times) < 2:
            raise ValueError(f"expected at least two steps, got {len(self.times)}")
        return float(np.diff(self.times).min())


class TimedModel(Classifier):
    """A classifier that notes when its backward pass began, and when each layer's gradient was complete."""

    began = 0.0

    def loss_and_gradient(
        self, x: np.ndarray, y: np.ndarray, finished: Callable[[int], None] | None = None
    ) -> float:
        """Return the loss and overwrite `grads`; `complete` gets a pair for each layer.

        A pair (start, time) says that `grads[start:]` was complete at that time (s).
        """
        self.complete: list[tuple[int, float]] = []

        def note(start: int) -> None:
            self.complete.append((start, perf_counter()))
            if finished:
                finished(start)

        return super().loss_and_gradient(x, y, note)

    def _loss_backward(self, out: np.ndarray, y: np.ndarray) -> np.ndarray:
        self.began = perf_counter()  # the backward pass begins with this call
        return super()._loss_backward(out, y)

    def layer_seconds(self) -> np.ndarray:
        """Return the time (s) of each layer's backward pass in the last call, the first layer first."""
        return np.diff([self.began, *(time for _, time in self.complete)])[::-1]


class SleepingModel:
    """Stands in for a model: sleeps for the time of each layer, then copies that layer's gradient.

    `starts` are those that the model passes to `finished`; `layer_s` are the times (s) of the layers'
    backward passes, the first layer first.
    """

    def __init__(
        self, gradient: np.ndarray, starts: Sequence[int], forward_s: float, layer_s: Sequence[float]
    ) -> None:
        if len(starts) != len(layer_s):
            raise ValueError(f"expected a time for each of {len(starts)} layers, got {len(layer_s)}")
        self.grads = np.empty_like(gradient)
        self.began = 0.0
        self.complete: list[tuple[int, float]] = []
        self._gradient, self._starts = gradient, starts
        self._forward_s, self._layer_s = forward_s, layer_s

    def loss_and_gradient(
        self, x: np.ndarray, y: np.ndarray, finished: Callable[[int], None] | None = None
    ) -> None:
        """Sleep as long as both passes take, and call `finished` as the model does."""
        sleep(self._forward_s)
        self.began = until = perf_counter()
        self.complete = []
        stop = len(self.grads)
        for start, seconds in zip(self._starts, reversed(self._layer_s), strict=True):
            until += seconds
            sleep(max(0.0, until - perf_counter()))
            self.grads[start:stop] = self._gradient[start:stop]
            self.complete.append((start, perf_counter()))
            stop = start
            if finished:
                finished(start)


class ListingComm(EmulatedComm):
    """A communicator on emulated links that lists the requests of its all-reduces in `requests`."""

    requests: list[Any]

    def __new__(cls, comm: MPI.Intracomm | None = None, links: Link | Sequence[Link] = ()) -> Any:
        listing = super().__new__(cls, comm, links)
        listing.requests = []
        return listing

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        request = super().Iallreduce(sendbuf, recvbuf, op)
        self.requests.append(request)
        return request


class StepTimes(NamedTuple):
    """When a rank computed in a step, and when its link carried data: spans (begin, end) in s."""

    forward: Span
    layers: list[Span]  # of the backward pass, in its order
    transfers: list[Span]

    @property
    def backward_s(self) -> float:
        return self.layers[-1][1] - self.layers[0][0]

    @property
    def transfer_s(self) -> float:
        return sum(end - begin for begin, end in self.transfers)

    @property
    def whole_s(self) -> float:
        """Return the time from the begin of the forward pass to the end of the last transfer."""
        return max(end for _, end in [*self.layers, *self.transfers]) - self.forward[0]


def timed_step(net: ListingComm, model: SleepingModel, step: Callable[[], object]) -> StepTimes:
    """Call `step`, which trains `model` and averages its gradient on `net`; return its times. Collective."""
    net.requests.clear()
    net.Barrier()
    begin = perf_counter()
    step()
    ends = [time for _, time in model.complete]
    layers = list(zip([model.began, *ends], ends, strict=False))
    transfers = [(r.due - r.seconds, r.due) for r in net.requests if r.has_due_time()]
    return StepTimes((begin, model.began), layers, transfers)
