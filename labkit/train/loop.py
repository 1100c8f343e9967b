"""The training loop: shard → forward → loss → backward → average the gradient → optimiser step → record.

One function does this for a notebook's `%%px` cell, for `mpiexec -n 4 labkit train` and for a batch job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Protocol

import numpy as np
from mpi4py import MPI

from labkit.comm import (
    Algorithm,
    CollectiveError,
    allocate_gradient,
    check_before_averaging,
    gradient_factor,
    mpi_allreduce,
    raise_together,
)
from labkit.nn import Classifier, Model, sgd_step
from labkit.train.batches import Batches, EpochBatches
from labkit.train.callbacks import Callback, Epoch, Iteration, Together
from labkit.train.gradients import AfterBackward, LocalGradient, StepAveraging, StepTimes
from labkit.train.replicas import (
    BUFFERS,
    Buffers,
    broadcast_model,
    check_replicas,
    drift,
    synchronise_buffers,
)


class Optimizer(Protocol):
    """Anything that updates a model's parameters from its gradients, such as `labkit.nn.SGD`."""

    params: np.ndarray

    def step(self, grads: np.ndarray, lr: float) -> None:
        """Update the parameters in place. Shapes: `grads` (n,), as the parameters."""


@dataclass
class Sums:
    """What one rank has added up so far in an epoch; the loss over its samples, times in s."""

    loss: float = 0.0
    correct: int = 0
    wait_s: float = 0.0
    transfer_s: float = 0.0
    time_s: float = 0.0

    def add(self, loss: float, correct: int, times: StepTimes) -> None:
        """Add a step: its loss summed over this rank's samples, its correct predictions and its times."""
        self.loss += loss
        self.correct += correct
        self.wait_s += times.start - times.ready
        self.transfer_s += times.end - times.start


def train(
    comm: MPI.Intracomm,
    model: Model,
    batches: Batches,
    *,
    epochs: int,
    lr: float | Callable[[int], float],
    optimizer: Optimizer | None = None,
    algorithm: Algorithm = mpi_allreduce,
    accumulate: int = 1,
    buffers: Buffers = "average",
    check_weights: bool = True,
    average_after_step: bool = False,
    callbacks: Sequence[Callback] = (),
) -> list[Epoch]:
    """Train `model` on the shards of all ranks in step; return this rank's epochs.

    Every rank starts from rank 0's parameters and buffers. `lr` is a number or a function of the step's
    number (from 0, over all epochs), such as those in `labkit.nn.lr_schedules`. `optimizer` is made for this
    model's parameters (`nn.SGD(model.params, momentum=0.9)`); the default is plain gradient descent.
    `algorithm` is one of `labkit.comm.ALGORITHMS`, one made by `labkit.comm.algorithm`, or a function of your
    own; with `shared_memory` the model's gradients lie in shared memory until `train` returns. `callbacks`
    measure contributions (`Contributions`), record a `Timeline` or make a rank slow (`Straggler`).

    - accumulate: cut each local batch into so many micro-batches, and average once per step
      (gradient accumulation, `no_sync` in PyTorch).
    - buffers: what happens to the ranks' buffers at the end of each epoch (`synchronise_buffers`).
    - check_weights: check at the end of each epoch that the ranks' weights are equal, bit for bit, and their
      buffers too unless these are left alone.
    - average_after_step: make report E's mistake. Each rank steps with its own gradient, and what the ranks
      average afterwards changes nothing. The weights drift apart, so they are not checked; `Epoch.drift` says
      how far.

    Collective. Raise CollectiveError on every rank if a shard or a setting does not fit the model or the
    other ranks' settings, if the loss is no longer finite, or if the ranks' weights differ.
    """
    entered = perf_counter()
    settings = epochs, accumulate, buffers, check_weights, average_after_step
    _check(comm, model, settings, lr, optimizer)
    batch = _checked(comm, model, batches.epoch(1))
    check_before_averaging(comm, model.grads, len(batch.x))
    broadcast_model(comm, model)
    update = optimizer.step if optimizer else partial(sgd_step, model.params)
    callback = Together(callbacks)
    sums = Sums(wait_s=perf_counter() - entered)
    rows, done = [], 0
    # A diverging run overflows. The check of its loss reports that once; NumPy would warn each time.
    with np.errstate(over="ignore", invalid="ignore"), _averaging(comm, model, algorithm) as averaging:
        gradient = LocalGradient(model, accumulate)
        for epoch in range(1, epochs + 1):
            epoch_began = perf_counter()
            if (current := batches.epoch(epoch)) is not batch:
                batch = _checked(comm, model, current)
            samples, steps = len(batch.x), len(batch.global_sizes)
            for number, global_batch in enumerate(batch.global_sizes):
                callback.before_step()
                begin = perf_counter()
                x, y = batch.local(number)
                fraction, rate = len(x) / global_batch, lr(done) if callable(lr) else lr

                averaging.begin(fraction)
                loss, correct = gradient(x, y, averaging.finished)
                factor = gradient_factor(algorithm, fraction, comm.size)
                callback.after_backward(model, global_batch * factor)
                if average_after_step:
                    update(model.grads, rate)
                averaging.finish()
                callback.after_average(model, global_batch)
                if not average_after_step:
                    update(model.grads, rate)

                done += 1
                times = (begin, *averaging.times, perf_counter())
                sums.add(len(x) * loss, correct, averaging.times)
                callback.after_step(Iteration(epoch, done, steps, loss, len(x), global_batch, rate, *times))
            sums.time_s += perf_counter() - epoch_began
            row = _epoch(comm, model, epoch, samples, sums)
            synchronise_buffers(comm, model, buffers, samples)
            if average_after_step:
                row.drift = drift(comm, model)
            elif check_weights:
                check_replicas(comm, model, buffers=buffers != "leave", when=f"after epoch {epoch}")
            rows.append(row)
            callback.after_epoch(model, row)
            sums = Sums()
    return rows


def gather(comm: MPI.Intracomm, rows: list[Epoch]) -> list[Epoch]:
    """Return the epochs of all ranks, by epoch and rank, on rank 0; an empty list elsewhere. Collective."""
    gathered = comm.gather(rows) or []
    return sorted((row for rows in gathered for row in rows), key=lambda row: (row.epoch, row.rank))


@contextmanager
def _averaging(comm: MPI.Intracomm, model: Model, algorithm: Algorithm) -> Iterator[StepAveraging]:
    """Return what averages the gradients of the steps, with the gradients where the algorithm works fastest.

    Entering is collective, leaving is not.
    """
    before = model.grads
    place = allocate_gradient(algorithm, comm, before.size, before.dtype)
    if place is not None:
        model.move_gradients(place)
    averaging: StepAveraging = AfterBackward(comm, model.grads, algorithm)
    try:
        yield averaging
    finally:
        averaging.close()
        model.move_gradients(before)


def _check(
    comm: MPI.Intracomm,
    model: Model,
    settings: tuple[int, int, str, bool, bool],
    lr: float | Callable[[int], float],
    optimizer: Optimizer | None,
) -> None:
    """Raise CollectiveError on every rank if a setting is wrong or differs between ranks. Collective."""
    epochs, accumulate, buffers, *_ = settings
    first_lr = lr(0) if callable(lr) else lr
    mine = first_lr, model.name, *settings
    expected = comm.bcast(mine)
    fault = None
    if epochs < 1:
        fault = f"expected epochs ≥ 1, got {epochs}"
    elif not math.isfinite(first_lr) or first_lr < 0 or lr == 0:
        fault = f"expected a learning rate lr > 0, got {first_lr}"
    elif accumulate < 1:
        fault = f"expected accumulate ≥ 1 micro-batches, got {accumulate}"
    elif buffers not in BUFFERS:
        fault = f"expected buffers to be one of {', '.join(BUFFERS)}, got {buffers!r}"
    elif mine != expected:
        names = ("lr", "model", "epochs", "accumulate", "buffers", "check_weights", "average_after_step")
        differ = [
            f"{name} = {there} as on rank 0, got {here}"
            for name, here, there in zip(names, mine, expected, strict=True)
            if here != there
        ]
        fault = f"expected {' and '.join(differ)}"
    elif optimizer and optimizer.params is not model.params:
        fault = f"expected an optimizer of the parameters of {model.name!r}, got one of another array"
    raise_together(comm, fault)


def _checked(comm: MPI.Intracomm, model: Model, batch: EpochBatches) -> EpochBatches:
    """Return the batches of an epoch once the shards of all ranks fit the model. Collective."""
    fault = None
    try:
        model.check(batch.x, batch.y)
    except ValueError as error:
        fault = str(error)
    raise_together(comm, fault)
    return batch


def _epoch(comm: MPI.Intracomm, model: Model, epoch: int, n: int, sums: Sums) -> Epoch:
    """Return the record of an epoch in which this rank has trained on n samples. Collective.

    Raise CollectiveError on every rank if the loss is not finite.
    """
    losses, correct, samples = np.array(comm.allgather((sums.loss, sums.correct, n))).T
    loss = float(losses.sum() / samples.sum())
    if not math.isfinite(loss):
        local = ", ".join(f"{each:.3g} on rank {rank}" for rank, each in enumerate(losses / samples))
        raise CollectiveError(
            f"the loss is {loss} in epoch {epoch} ({local}), expected a finite one: the training "
            "diverges or the data are not finite; try a lower learning rate"
        )
    row = Epoch(epoch, comm.rank, sums.loss / n, loss, sums.wait_s, sums.transfer_s)
    row.samples, row.time_s = n, sums.time_s
    if isinstance(model, Classifier):
        row.local_accuracy = sums.correct / n
        row.global_accuracy = float(correct.sum() / samples.sum())
    return row
