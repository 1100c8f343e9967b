"""From a local batch to the averaged gradient: accumulation over micro-batches, averaging over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import numpy as np
from mpi4py import MPI

from labkit.comm import Averages, Averaging
from labkit.nn import Model
from labkit.train.callbacks import Optimizer
from labkit.train.steps import Step

Finished = Callable[[int], None]


class StepAveraging:
    """Average the gradient of each step at once, when the backward pass is over; `Overlapped` begins earlier.

    `train` makes one such object for a whole run. In each step, it calls `begin`, then the backward pass
    calls `finished` again and again, then `train` calls `finish`. With gradient accumulation, only the step's
    last micro-batch calls `finished`: each rank averages once per step. `train` calls `close` at the end of
    the run.

    `grads` is the same array for the whole run, in the memory that the algorithm prefers
    (`labkit.comm.Averaging.allocate`), and is averaged in place. All ranks make the same calls, in the same
    order, but a rank whose local batch is empty calls `finished` only once, with 0: its gradient is zero.

    `residual` is what compression has not sent yet, in an array like `grads`; None without compression.
    """

    _step: Step
    residual: np.ndarray | None = None

    def __init__(self, comm: MPI.Intracomm, grads: np.ndarray, algorithm: Averages) -> None:
        self._comm, self._grads, self._algorithm = comm, grads, algorithm
        if isinstance(algorithm, Averaging):
            if algorithm.compress != "none":
                self.residual = np.zeros_like(grads)
                algorithm = replace(algorithm, residual=self.residual)
            self._algorithm = algorithm.bind(comm, grads.nbytes)

    def begin(self, step: Step) -> None:
        """Begin a step, whose batches are known. Send nothing yet."""
        self._step = step

    def finished(self, start: int) -> None:
        """Learn that `grads[start:]` is complete; `start` falls from call to call until it is 0."""

    def finish(self) -> None:
        """Return when `grads` holds the average and the step its times. Collective.

        A barrier parts the time of waiting for the last rank from the time of averaging.
        """
        step = self._step
        step.ready = perf_counter()
        self._comm.Barrier()
        step.start = perf_counter()
        self._algorithm(self._comm, self._grads, step.fraction)
        step.end = perf_counter()

    def held(self, model: Model, optimizer: Optimizer | None) -> dict[str, list[np.ndarray]]:
        """Return the arrays that hold this rank's state, by kind."""
        state = [*optimizer.state().values()] if optimizer else []
        held = {"parameters": [model.params], "gradient": [model.grads], "optimizer": state}
        return held if self.residual is None else {**held, "residual": [self.residual]}

    def close(self, failed: bool) -> None:
        """Release what the object holds, such as a thread. Collective, unless the run has `failed`."""


class LocalGradient:
    """The gradient of a rank's local batch, accumulated over micro-batches (gradient accumulation).

    The local batch is cut into `accumulate` micro-batches of equal size to within one sample, fewer if it has
    fewer samples. So a rank needs memory for the activations of one micro-batch only. Each gradient is
    weighted by the size of its micro-batch, so the result is that of the whole local batch, up to rounding;
    only batch normalisation differs, because it takes its statistics from a micro-batch.

    The sum lies beside `model.grads`. The last backward pass adds it to `grads`, layer by layer, before it
    tells `finished` that these entries are complete. So the result is where the averaging wants it, without
    a copy. In PyTorch's DDP, all micro-batches but the last run under `no_sync()`.
    """

    def __init__(self, model: Model, accumulate: int = 1) -> None:
        self._model, self._accumulate = model, accumulate
        self._sum = np.empty_like(model.grads) if accumulate > 1 else np.empty(0)

    def __call__(self, x: np.ndarray, y: np.ndarray, finished: Finished) -> tuple[float, int]:
        """Leave the local batch's mean gradient in `model.grads`.

        Return the batch's mean loss, and how many of its predictions were right.
        Shapes: x (n, …), y as the model's targets; n may be 0, then the gradient and both results are 0.
        """
        model, n = self._model, len(x)
        if n == 0:  # the global batch is smaller than the number of ranks
            model.grads[...] = 0
            finished(0)
            return 0.0, 0
        bounds = np.linspace(0, n, min(n, self._accumulate) + 1).astype(int).tolist()
        *others, last = [slice(*bound) for bound in pairwise(bounds)]
        loss, correct = 0.0, 0
        for part in others:
            fraction = (part.stop - part.start) / n
            loss += fraction * model.loss_and_gradient(x[part], y[part])
            correct += model.correct
            self._keep(fraction, first=part.start == 0)
        fraction = (last.stop - last.start) / n
        then = self._adding(fraction, finished) if others else finished
        loss += fraction * model.loss_and_gradient(x[last], y[last], then)
        return loss, correct + model.correct

    def _keep(self, fraction: float, first: bool) -> None:
        """Add a micro-batch's gradient to the sum."""
        grads = self._model.grads
        weight = grads.dtype.type(fraction)
        if first:
            np.multiply(grads, weight, out=self._sum)
        else:
            grads *= weight
            self._sum += grads

    def _adding(self, fraction: float, finished: Finished) -> Finished:
        """Return a function that first adds the sum to the entries that have just been completed."""
        grads = self._model.grads
        weight, stop = grads.dtype.type(fraction), grads.size

        def add(start: int) -> None:
            nonlocal stop
            own = grads[start:stop]
            own *= weight
            own += self._sum[start:stop]
            stop = start
            finished(start)

        return add
