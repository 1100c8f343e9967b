"""The training loop: shard → forward → loss → backward → average the gradient → optimiser step → record.

One function does this for a notebook's `%%px` cell, for `mpiexec -n 4 labkit train` and for a batch job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm import (
    ALGORITHMS,
    Averages,
    Averaging,
    check_before_averaging,
    raise_together,
)
from labkit.nn import Model, sgd_step
from labkit.train.batches import Batches
from labkit.train.buckets import Buckets
from labkit.train.callbacks import Callback, Optimizer
from labkit.train.checkpoints import Checkpoints, Saving
from labkit.train.gradients import LocalGradient, StepAveraging
from labkit.train.overlap import Overlapped, why_no_overlap
from labkit.train.replicas import broadcast_model, end_epoch
from labkit.train.settings import BUFFERS, Buffers
from labkit.train.sharding import Sharded, why_not_sharded
from labkit.train.steps import Epoch, Position, Step


def train(  # noqa: PLR0912 (the path of a batch in one piece)
    comm: MPI.Intracomm,
    model: Model,
    batches: Batches,
    *,
    epochs: int,
    lr: float | Callable[[int], float],
    optimizer: Optimizer | None = None,
    algorithm: Averages = ALGORITHMS["mpi"],
    buckets: Buckets | None = None,
    shard_state: str = "none",
    accumulate: int = 1,
    buffers: Buffers = "average",
    check_weights: bool = True,
    average_after_step: bool = False,
    checkpoints: Checkpoints | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Epoch]:
    """Train `model` on the shards of all ranks in step; return this rank's epochs.

    Every rank starts from rank 0's parameters and buffers. `lr` is a number or a function of the step's
    number (from 0, over all epochs), such as those in `labkit.nn.lr_schedules`. `optimizer` is made for this
    model's parameters (`nn.SGD(model.params, momentum=0.9)`); the default is plain gradient descent.
    `algorithm` is one of `labkit.comm.ALGORITHMS`, another `labkit.comm.Averaging`, or a function of your
    own; with "shared-memory" the model's gradients lie in shared memory until `train` returns. `callbacks`
    measure contributions (`Contributions`), record a `Timeline` or make a rank slow (`Straggler`).

    - buckets: average the gradient bucket by bucket while the backward pass goes on (`bucket_cap_mb` of
      PyTorch's DDP). The algorithm must be a `labkit.comm.Averaging`.
    - shard_state: what each rank keeps only its own part of (`Sharded`): "none", "optimizer" (ZeRO-1),
      "gradients" (ZeRO-2: also of the averaged gradient) or "parameters" (ZeRO-3: also of the parameters;
      `model.params` has no content between the layers that use it until `train` returns, and no weights are
      compared). It implies buckets, `Buckets()` unless given, and needs the algorithm "mpi" or "ring".
    - accumulate: cut each local batch into so many micro-batches, and average once per step
      (gradient accumulation, `no_sync` in PyTorch).
    - buffers: what happens to the ranks' buffers at the end of each epoch (`synchronise_buffers`).
    - check_weights: check at the end of each epoch that the ranks' weights are equal, bit for bit, and their
      buffers too unless these are left alone.
    - average_after_step: make report E's mistake. Each rank steps with its own gradient, and what the ranks
      average afterwards changes nothing. The weights drift apart, so they are not checked; `Epoch.drift` says
      how far.
    - checkpoints: when and where the run's state is saved, and whether the run is resumed.

    Collective. Raise CollectiveError on every rank if a shard or a setting does not fit the model or the
    other ranks' settings, if the loss is no longer finite, if the ranks' weights differ, or if a
    checkpoint does not fit.
    """
    entered = perf_counter()
    same = {
        "model": model.name,
        "epochs": epochs,
        "lr": lr(0) if callable(lr) else lr,
        "accumulate": accumulate,
        "buffers": buffers,
        "check_weights": check_weights,
        "average_after_step": average_after_step,
        "checkpoints": repr(checkpoints),
        "buckets": repr(buckets),
        "shard_state": shard_state,
        "compress": algorithm.compress if isinstance(algorithm, Averaging) else "none",
    }
    fault = why_not_sharded(shard_state, algorithm, average_after_step, callbacks)
    fault = fault or why_no_overlap(buckets, algorithm, average_after_step, callbacks)
    if optimizer and optimizer.params is not model.params:
        fault = f"expected an optimizer of the parameters of {model.name!r}, got one of another array"
    _check(comm, same, fault, least_lr=0.0 if callable(lr) else 1e-300)
    shard = batches.fitting(model, 1)
    check_before_averaging(comm, model.grads, len(shard.x))
    broadcast_model(comm, model)
    # What this rank's gradient is multiplied by: its weight, unless the algorithm says otherwise.
    factor = algorithm.factor if isinstance(algorithm, Averaging) else lambda weight, p: weight
    # A diverging run overflows. The check of its loss reports that once; NumPy would warn each time.
    quiet = np.errstate(over="ignore", invalid="ignore")
    with (
        quiet,
        _averaging(
            comm,
            model,
            algorithm,
            buckets,
            optimizer=optimizer,
            shard_state=shard_state,
            accumulate=accumulate,
        ) as averaging,
        (
            Saving(comm, checkpoints, model, optimizer, batches, callbacks, same, averaging)
            if checkpoints
            else nullcontext()
        ) as saving,
    ):
        update = optimizer.step if optimizer else partial(sgd_step, model.params)
        update = averaging.update if isinstance(averaging, Sharded) else update
        for callback in callbacks:
            callback.begin(model, averaging.held(model, optimizer))
        gradient = LocalGradient(model, accumulate)
        position = saving.position if saving else Position()
        position.wait_s += perf_counter() - entered
        for epoch in range(position.epoch, epochs + 1):
            epoch_began = perf_counter() - position.time_s
            shard = shard if epoch == 1 else batches.fitting(model, epoch)
            while position.step < len(shard.global_sizes):
                for callback in callbacks:
                    callback.before_step()
                step = Step(epoch, position.done + 1, comm.rank, begin=perf_counter())
                x, y = shard.local(position.step)
                step.local_batch, step.global_batch = len(x), shard.global_sizes[position.step]
                step.lr = lr(position.done) if callable(lr) else lr

                averaging.begin(step)
                step.loss, step.correct = gradient(x, y, averaging.finished)  # forward, loss and backward
                weight = step.global_batch * factor(step.fraction, comm.size)
                for callback in callbacks:
                    callback.after_backward(model, weight)
                if average_after_step:
                    update(model.grads, step.lr)
                averaging.finish()
                for callback in callbacks:
                    callback.after_average(model, step.global_batch)
                if not average_after_step:
                    update(model.grads, step.lr)

                step.done = perf_counter()
                position.add(step)
                for callback in callbacks:
                    callback.after_step(step)
                position.time_s = perf_counter() - epoch_began
                if saving and position.step < len(shard.global_sizes):
                    saving.after_step(position)
            row = end_epoch(comm, model, len(shard.x), position, same)
            for callback in callbacks:
                callback.after_epoch(model, row)
            position.next_epoch(row)
            if saving:
                saving.after_step(position)
    return position.rows


def gather(comm: MPI.Intracomm, rows: list[Epoch]) -> list[Epoch]:
    """Return the epochs of all ranks, by epoch and rank, on rank 0; an empty list elsewhere. Collective."""
    gathered = comm.gather(rows) or []
    return sorted((row for rows in gathered for row in rows), key=lambda row: (row.epoch, row.rank))


@contextmanager
def _averaging(
    comm: MPI.Intracomm,
    model: Model,
    algorithm: Averages,
    buckets: Buckets | None,
    *,
    optimizer: Optimizer | None,
    shard_state: str,
    accumulate: int,
) -> Iterator[StepAveraging]:
    """Return what averages the gradients of the steps, with the gradients where the algorithm works fastest.

    Collective.
    """
    before = model.grads
    place = algorithm.allocate(comm, before.size, before.dtype) if isinstance(algorithm, Averaging) else None
    if place is not None:
        model.move_gradients(place)
    averaging = StepAveraging(comm, model.grads, algorithm)
    if shard_state != "none" and isinstance(algorithm, Averaging):
        averaging = Sharded(comm, model, algorithm, buckets or Buckets(), optimizer, shard_state, accumulate)
    elif buckets is not None and isinstance(algorithm, Averaging):
        averaging = Overlapped(comm, model.grads, algorithm, buckets)
    failed = True
    try:
        yield averaging
        failed = False
    finally:
        averaging.close(failed)
        model.move_gradients(before)


def _check(comm: MPI.Intracomm, same: Mapping[str, Any], fault: str | None, least_lr: float) -> None:
    """Raise CollectiveError on every rank if there is a fault, or a setting is wrong or not the same on all.

    Collective.
    """
    expected = comm.bcast(same)
    if same["epochs"] < 1:
        fault = f"expected epochs ≥ 1, got {same['epochs']}"
    elif not least_lr <= same["lr"] < math.inf:
        fault = f"expected a learning rate lr > 0, got {same['lr']}"
    elif same["accumulate"] < 1:
        fault = f"expected accumulate ≥ 1 micro-batches, got {same['accumulate']}"
    elif same["buffers"] not in BUFFERS:
        fault = f"expected buffers to be one of {', '.join(BUFFERS)}, got {same['buffers']!r}"
    elif same != expected:
        fault = " and ".join(
            f"expected {name} = {expected[name]} as on rank 0, got {value}"
            for name, value in same.items()
            if value != expected[name]
        )
    raise_together(comm, fault)
