"""The training loop: shard → forward → loss → backward → average the gradient → optimiser step → record.

One function does this for a notebook's `%%px` cell, for `mpiexec -n 4 labkit train` and for a batch job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from labkit.nn import Model, sgd_step
from labkit.train.batches import Batches, EpochBatches
from labkit.train.callbacks import Callback, Epoch
from labkit.train.replicas import broadcast_model


class Optimizer(Protocol):
    """Anything that updates a model's parameters from its gradients, such as `labkit.nn.SGD`."""

    params: np.ndarray

    def step(self, grads: np.ndarray, lr: float) -> None:
        """Update the parameters in place. Shapes: `grads` (n,), as the parameters."""


def train(
    comm: MPI.Intracomm,
    model: Model,
    batches: Batches,
    *,
    epochs: int,
    lr: float | Callable[[int], float],
    optimizer: Optimizer | None = None,
    algorithm: Algorithm = mpi_allreduce,
    callbacks: Sequence[Callback] = (),
) -> list[Epoch]:
    """Train `model` on the shards of all ranks in step; return this rank's epochs.

    Every rank starts from rank 0's parameters and buffers. `lr` is a number or a function of the step's
    number (from 0, over all epochs), such as those in `labkit.nn.lr_schedules`. `optimizer` is made for this
    model's parameters (`nn.SGD(model.params, momentum=0.9)`); the default is plain gradient descent.
    `algorithm` is one of `labkit.comm.ALGORITHMS`, one made by `labkit.comm.algorithm`, or a function of your
    own; with `shared_memory` the model's gradients lie in shared memory until `train` returns. `callbacks`
    measure contributions (`Contributions`), record a `Timeline` or make a rank slow (`Straggler`).

    Collective. Raise CollectiveError on every rank if a shard or a setting does not fit the model or the
    other ranks' settings, or if the loss is no longer finite.
    """
    entered = perf_counter()
    _check(comm, model, epochs, lr, optimizer)
    batch = _checked(comm, model, batches.epoch(1))
    check_before_averaging(comm, model.grads, len(batch.x))
    broadcast_model(comm, model)
    wait_s = perf_counter() - entered

    update = optimizer.step if optimizer else partial(sgd_step, model.params)
    rows, step = [], 0
    with _gradients_in_place(comm, model, algorithm):
        for epoch in range(1, epochs + 1):
            if (current := batches.epoch(epoch)) is not batch:
                batch = _checked(comm, model, current)
            x, y, slices, global_sizes = batch
            loss_sum, transfer_s = 0.0, 0.0
            # A diverging run overflows. The check of its loss reports that once; NumPy would warn each time.
            with np.errstate(over="ignore", invalid="ignore"):
                for part, global_size in zip(slices, global_sizes, strict=True):
                    for callback in callbacks:
                        callback.before_step()
                    begin = perf_counter()
                    samples = part.stop - part.start
                    if samples:
                        loss_sum += samples * model.loss_and_gradient(x[part], y[part])
                    else:  # the global batch is smaller than the number of ranks
                        model.grads[...] = 0
                    fraction = samples / global_size
                    for callback in callbacks:
                        callback.after_backward(
                            model, global_size * gradient_factor(algorithm, fraction, comm.size)
                        )

                    ready = perf_counter()
                    comm.Barrier()
                    start = perf_counter()
                    algorithm(comm, model.grads, fraction)
                    end = perf_counter()
                    wait_s += start - ready
                    transfer_s += end - start

                    for callback in callbacks:
                        callback.after_average(model, global_size)
                    update(model.grads, lr(step) if callable(lr) else lr)
                    times = begin, ready, start, end, perf_counter()
                    for callback in callbacks:
                        callback.after_step(epoch, times)
                    step += 1
                global_loss = _global_loss(comm, loss_sum, len(x), epoch)
                row = Epoch(epoch, comm.rank, loss_sum / len(x), global_loss, wait_s, transfer_s)
                rows.append(row)
                for callback in callbacks:
                    callback.after_epoch(model, row)
            wait_s = 0.0
    return rows


def gather(comm: MPI.Intracomm, rows: list[Epoch]) -> list[Epoch]:
    """Return the epochs of all ranks, by epoch and rank, on rank 0; an empty list elsewhere. Collective."""
    gathered = comm.gather(rows) or []
    return sorted((row for rows in gathered for row in rows), key=lambda row: (row.epoch, row.rank))


@contextmanager
def _gradients_in_place(comm: MPI.Intracomm, model: Model, algorithm: Algorithm) -> Iterator[None]:
    """Keep the gradients where the algorithm works fastest. Entering is collective, leaving is not."""
    before = model.grads
    place = allocate_gradient(algorithm, comm, before.size, before.dtype)
    if place is not None:
        model.move_gradients(place)
    try:
        yield
    finally:
        model.move_gradients(before)


def _check(
    comm: MPI.Intracomm,
    model: Model,
    epochs: int,
    lr: float | Callable[[int], float],
    optimizer: Optimizer | None,
) -> None:
    """Raise CollectiveError on every rank if a setting is wrong or differs between ranks. Collective."""
    first_lr = lr(0) if callable(lr) else lr
    settings = epochs, first_lr, model.name
    expected = comm.bcast(settings)
    fault = None
    if epochs < 1 or not math.isfinite(first_lr) or first_lr < 0 or lr == 0:
        fault = f"expected epochs ≥ 1 and lr > 0, got {epochs} and {first_lr}"
    elif settings != expected:
        fault = f"expected (epochs, lr, model) = {expected} as on rank 0, got {settings}"
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


def _global_loss(comm: MPI.Intracomm, loss_sum: float, n: int, epoch: int) -> float:
    """Return the mean loss over the samples of all ranks. Collective.

    Raise CollectiveError on every rank if it is not finite.
    """
    sums = np.array(comm.allgather((loss_sum, n)))
    loss = float(sums[:, 0].sum() / sums[:, 1].sum())
    if not math.isfinite(loss):
        local = ", ".join(f"{s / count:.3g} on rank {rank}" for rank, (s, count) in enumerate(sums))
        raise CollectiveError(
            f"the loss is {loss} in epoch {epoch} ({local}), expected a finite one: the training "
            "diverges or the data are not finite; try a lower learning rate"
        )
    return loss
