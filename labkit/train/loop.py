"""The training loop: shard → forward → loss → backward → average the gradient → optimiser step → record.

One function does this for a notebook's `%%px` cell, for `mpiexec -n 4 labkit train` and for a batch job.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.algorithms import AUTO
from labkit.comm import (
    ALGORITHMS,
    Averages,
    Averaging,
    CollectiveError,
    check_before_averaging,
    raise_together,
)
from labkit.comm.algorithms import IN_HALVES
from labkit.nn import Classifier, Model, sgd_step
from labkit.text import ranks_phrase
from labkit.train.batches import Batches
from labkit.train.callbacks import Callback, Optimizer
from labkit.train.checkpoints import Checkpoints, Saving
from labkit.train.overlap import Buckets, Overlapped, StepAveraging
from labkit.train.settings import BUFFERS, SHARD_STATES, Buffers
from labkit.train.sharding import Sharded
from labkit.train.steps import Epoch, Step


def train(  # noqa: PLR0912, PLR0915 (the path of a batch in one piece)
    comm: MPI.Intracomm,
    model: Model,
    batches: Batches,
    *,
    epochs: int,
    iterations: int | None = None,
    lr: float | Callable[[int], float],
    optimizer: Optimizer | None = None,
    algorithm: Averages = ALGORITHMS[AUTO],
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
    own; with "shared-memory", and for large gradients with "auto" on one machine, the model's gradients lie
    in shared memory until `train` returns. `callbacks` measure contributions (`Contributions`), record a
    `Timeline` or make a rank slow (`Straggler`).

    - iterations: end after so many steps, even within an epoch.
    - buckets: average the gradient bucket by bucket while the backward pass goes on (`bucket_cap_mb` of
      PyTorch's DDP). The algorithm must be a `labkit.comm.Averaging`.
    - shard_state: what each rank keeps only its own part of (`Sharded`): "none", "optimizer" (ZeRO-1),
      "gradients" (ZeRO-2: also of the averaged gradient) or "parameters" (ZeRO-3: also of the parameters;
      `model.params` has no content between the layers that use it until `train` returns, and no weights are
      compared). It implies buckets, `Buckets()` unless given, and needs the algorithm "mpi"
      (which "auto" is here) or "ring".
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
        "iterations": iterations,
        "lr": lr(0) if callable(lr) else lr,
        "accumulate": accumulate,
        "buffers": buffers,
        "check_weights": check_weights,
        "average_after_step": average_after_step,
        "checkpoints": repr(checkpoints),
        "buckets": repr(buckets),
        "shard_state": shard_state,
        "compress": algorithm.compress if isinstance(algorithm, Averaging) else "none",
        "aggregate": algorithm.aggregate if isinstance(algorithm, Averaging) else "weighted",
    }
    fault = None if callable(lr) or lr else "expected a learning rate lr > 0, got 0.0"
    if optimizer and optimizer.params is not model.params:
        fault = f"expected an optimizer of the parameters of {model.name!r}, got one of another array"
    _check(comm, same, fault or _no_overlap(buckets, shard_state, algorithm, average_after_step, callbacks))
    total = min(epochs * batches.steps, iterations or epochs * batches.steps)
    epochs = -(-total // batches.steps)
    shard = batches.epoch(1, model)
    check_before_averaging(comm, model.grads, len(shard.x))
    comm.Bcast(model.params)
    comm.Bcast(model.buffers)
    # What this rank's gradient is multiplied by: its weight, unless the algorithm says otherwise.
    factor = algorithm.factor if isinstance(algorithm, Averaging) else lambda weight, p: weight
    # A diverging run overflows. The check of its loss reports that once; NumPy would warn each time.
    quiet = np.errstate(over="ignore", invalid="ignore")
    averaging: StepAveraging
    if not isinstance(algorithm, Averaging) or (buckets is None and shard_state == "none"):
        averaging = StepAveraging(comm, model, algorithm, optimizer)
    elif shard_state == "none":
        averaging = Overlapped(comm, model, algorithm, buckets or Buckets(), optimizer)
    else:
        if algorithm.algorithm == AUTO:
            algorithm = replace(algorithm, algorithm="mpi")
        averaging = Sharded(comm, model, algorithm, buckets or Buckets(), optimizer, shard_state, accumulate)
    saving = None
    if checkpoints:
        run_description = {**same, "optimizer": repr(optimizer), **batches.about}
        held, any_ranks = len(shard.x), batches.for_any_ranks
        saving = Saving(comm, checkpoints, model, averaging, callbacks, run_description, held, any_ranks)
    with quiet, averaging, saving or nullcontext():
        for callback in callbacks:
            callback.begin(model, averaging.held())
        gradient = LocalGradient(model, accumulate)
        rows = saving.rows if saving else [Epoch(1, comm.rank)]
        rows[-1].wait_s += perf_counter() - entered
        while rows[-1].epoch <= epochs:
            row = rows[-1]
            began = perf_counter() - row.time_s
            shard = shard if row.epoch == 1 else batches.epoch(row.epoch, model)
            before = (row.epoch - 1) * batches.steps
            steps = min(batches.steps, total - before)
            while row.steps < steps:
                for callback in callbacks:
                    callback.before_step()
                done = before + row.steps
                step = Step(row.epoch, done + 1, comm.rank, begin=perf_counter())
                x, y = shard.local(row.steps)
                step.local_batch = len(x)
                step.global_batch = shard.global_sizes[row.steps]
                step.lr = lr(done) if callable(lr) else lr

                averaging.begin_step(step)
                step.loss, step.correct = gradient(x, y, averaging.finished)  # forward, loss and backward
                weight = step.global_batch * factor(step.fraction, comm.size)
                for callback in callbacks:
                    callback.after_backward(model, weight)
                if average_after_step:
                    averaging.update(step.lr)
                averaging.finish()
                for callback in callbacks:
                    callback.after_average(model, step.global_batch)
                if not average_after_step:
                    averaging.update(step.lr)

                step.done = perf_counter()
                row.add(step)
                for callback in callbacks:
                    callback.after_step(step)
                row.time_s = perf_counter() - began
                if saving and row.steps < steps:
                    saving.after_step(rows, step.number)
            end_epoch(comm, model, row, shard.slices[steps - 1].stop, same)
            for callback in callbacks:
                callback.after_epoch(model, row)
            rows.append(Epoch(row.epoch + 1, comm.rank))
            if saving:
                saving.after_step(rows, before + steps)
    return rows[:-1]


def gather(comm: MPI.Intracomm, rows: list[Epoch]) -> list[Epoch]:
    """Return the epochs of all ranks, by epoch and rank, on rank 0; an empty list elsewhere. Collective."""
    gathered = comm.gather(rows) or []
    return sorted((row for rows in gathered for row in rows), key=lambda row: (row.epoch, row.rank))


def _check(comm: MPI.Intracomm, same: Mapping[str, Any], fault: str | None) -> None:
    """Raise CollectiveError on every rank if there is a fault, or a setting is wrong or not the same on all.

    Collective.
    """
    expected = comm.bcast(same)
    if same["epochs"] < 1:
        fault = f"expected epochs ≥ 1, got {same['epochs']}"
    elif same["iterations"] is not None and same["iterations"] < 1:
        fault = f"expected iterations ≥ 1 or None, got {same['iterations']}"
    elif not 0 <= same["lr"] < math.inf:
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


def _no_overlap(
    buckets: Buckets | None,
    shard_state: str,
    algorithm: Averages,
    average_after_step: bool,
    callbacks: Sequence[Callback],
) -> str | None:
    """Return why a run with these settings cannot average during the backward pass; None if it can."""
    if shard_state not in SHARD_STATES:
        return f"expected shard_state to be one of {', '.join(SHARD_STATES)}, got {shard_state!r}"
    if shard_state == "none" and buckets is None:
        return None
    without = "no buckets" if shard_state == "none" else "shard_state none"
    readers = sorted({type(callback).__name__ for callback in callbacks if callback.reads_gradients})
    if readers:
        return (
            f"expected {without} with {', '.join(readers)}, which reads each rank's own gradient: it is "
            "averaged during the backward pass"
        )
    if average_after_step:
        return f"expected {without} with average_after_step: the ranks average before each rank's own step"
    if not isinstance(algorithm, Averaging):
        return f"expected an algorithm of labkit.comm (a labkit.comm.Averaging) with buckets, got {algorithm}"
    fault = None
    if shard_state != "none" and (
        algorithm.algorithm not in (AUTO, *IN_HALVES) or algorithm.compress != "none"
    ):
        fault = (
            f"expected the algorithm {' or '.join(IN_HALVES)} with shard_state {shard_state}, which calls "
            "reduce-scatter and all-gather apart, and the compression none, got "
            f"{algorithm.algorithm} and {algorithm.compress}"
        )
    return fault


def end_epoch(comm: MPI.Intracomm, model: Model, row: Epoch, held: int, settings: Mapping[str, Any]) -> None:
    """Complete the record of an epoch on this rank from its sums; make the ranks' buffers equal.

    This rank has `held` samples in the epoch; the sums also count those that it took over from a run on other
    ranks. Collective. Raise CollectiveError on every rank if the loss is not finite or the ranks' weights
    differ.
    """
    n = row.samples or math.nan  # a rank without samples has no loss
    losses, correct, samples = np.array(comm.allgather((row.loss_sum, row.correct, row.samples))).T
    row.local_loss = row.loss_sum / n
    row.global_loss = float(losses.sum() / samples.sum())
    if not math.isfinite(row.global_loss):
        local = ", ".join(f"{loss:.3g} on rank {rank}" for rank, loss in enumerate(losses / samples))
        raise CollectiveError(
            f"the loss is {row.global_loss} in epoch {row.epoch} ({local}), expected a finite one: the "
            "training diverges or the data are not finite; try a lower learning rate"
        )
    if isinstance(model, Classifier):
        row.local_accuracy = row.correct / n
        row.global_accuracy = float(correct.sum() / samples.sum())
    synchronise_buffers(comm, model, settings["buffers"], held)
    if settings["average_after_step"]:
        first = model.params.copy()
        comm.Bcast(first)
        apart = np.linalg.norm(model.params - first) / np.linalg.norm(first)
        row.drift = float(comm.allreduce(float(apart), MPI.MAX))
    elif settings["check_weights"]:
        # With sharded parameters, there are no two copies of them.
        arrays = {} if settings["shard_state"] == "parameters" else {"parameters": model.params}
        arrays |= {"buffers": model.buffers} if settings["buffers"] != "leave" else {}
        for name, array in arrays.items():
            check_replicas(comm, array, f"after epoch {row.epoch}", f"the {name} of {model.name!r}")


def synchronise_buffers(comm: MPI.Intracomm, model: Model, how: Buffers, samples: int) -> None:
    """Make the ranks' buffers equal, unless `how` is "leave". Collective.

    Parameters stay equal because every rank applies the same averaged gradient. Buffers do not: each rank
    computes the running statistics of batch normalisation from its own local batches. Two ranks then have
    equal weights and unequal test accuracies, as in report C.

    - "average": their mean, each rank weighted by its number of samples, as in a gradient's mean. Every rank
      computes it in the same order, so all get the same bits.
    - "broadcast": those of rank 0. PyTorch's DDP copies them before each forward pass (`broadcast_buffers`).
    - "leave": each rank keeps its own, so its model predicts a little differently.

    Training itself never reads running statistics, so it is enough to do this before somebody reads them: at
    the end of an epoch. The result is the same as after every step. A rank's statistics do not depend on
    those of other ranks, so rank 0 would have the same; and they are linear in those of the batches, so the
    mean of the ranks' running statistics is the running mean of the ranks' statistics (up to rounding, and
    except that a shorter last batch counts by the ranks' parts of the epoch, not by those of that batch).
    """
    if how == "leave" or not model.buffers.size or comm.size == 1:
        return
    if how == "broadcast":
        comm.Bcast(model.buffers)
        return
    weights, buffers = zip(*comm.allgather((samples, model.buffers)), strict=True)
    model.buffers[...] = np.average(buffers, axis=0, weights=weights)


def check_replicas(comm: MPI.Intracomm, array: np.ndarray, when: str, subject: str) -> None:
    """Check that all ranks have the same array, bit for bit.

    Each rank hashes its bytes (about 1 GB/s), and one small allgather compares the hashes. Collective. Raise
    CollectiveError on every rank if they differ: the message names the ranks that differ from the majority,
    or from rank 0 if there is none.
    """
    digests = comm.allgather(hash_of(array))
    common = Counter(digests).most_common(1)[0][0]  # the first in the order of ranks, if there is a tie
    others = [rank for rank, digest in enumerate(digests) if digest != common]
    if others:
        equal = [rank for rank, digest in enumerate(digests) if digest == common]
        raise CollectiveError(
            f"{when}, {ranks_phrase(others, comm.size)}: {subject} have the hash "
            f"{', '.join(digests[rank][:8] for rank in others)}, expected {common[:8]} as on "
            f"{ranks_phrase(equal, comm.size)}. A rank has changed its own model, or "
            "averaging gave the ranks different results; to go on regardless, set check_weights=False"
        )


def hash_of(array: np.ndarray) -> str:
    """Return a hash of an array's bytes: equal arrays have equal hashes."""
    return blake2b(array.data, digest_size=16).hexdigest()


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
        self._model = model
        self._accumulate = accumulate
        self._sum = np.empty_like(model.grads) if accumulate > 1 else np.empty(0)

    def __call__(self, x: np.ndarray, y: np.ndarray, finished: Callable[[int], None]) -> tuple[float, int]:
        """Leave the local batch's mean gradient in `model.grads`.

        Return the batch's mean loss, and how many of its predictions were right.
        Shapes: x (n, …), y as the model's targets; n may be 0, then the gradient and both results are 0.
        """
        model, grads, n = self._model, self._model.grads, len(x)
        if n == 0:  # the global batch is smaller than the number of ranks
            grads[...] = 0
            finished(0)
            return 0.0, 0
        bounds = np.linspace(0, n, min(n, self._accumulate) + 1).astype(int).tolist()
        *others, (first, last) = pairwise(bounds)
        loss, correct = 0.0, 0
        for lower, upper in others:
            fraction = (upper - lower) / n
            loss += fraction * model.loss_and_gradient(x[lower:upper], y[lower:upper])
            correct += model.correct
            grads *= grads.dtype.type(fraction)
            if lower == 0:
                self._sum[...] = grads
            else:
                self._sum += grads
        fraction, incomplete = (last - first) / n, grads.size

        def add(start: int) -> None:
            """Add the sum to the entries that have just been completed."""
            nonlocal incomplete
            accumulated = grads[start:incomplete]
            accumulated *= grads.dtype.type(fraction)
            accumulated += self._sum[start:incomplete]
            incomplete = start
            finished(start)

        loss += fraction * model.loss_and_gradient(x[first:], y[first:], add if others else finished)
        return loss, correct + model.correct


def local_sgd(
    comm: MPI.Intracomm,
    model: Model,
    batches: Batches,
    *,
    epochs: int,
    lr: float,
    every: int,
    algorithm: Averages = ALGORITHMS["mpi"],
    callbacks: Sequence[Callback] = (),
) -> list[float]:
    """Train `model` on the ranks' shards, average its parameters `every` so many steps; return the losses.

    The ranks communicate less often than in `train`, and wait less for a rank that is slow for a short time.
    The result is not that of synchronous training, because between two averages each rank follows its own
    shard. Source: S. U. Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.

    Arguments as for `train`; of the callbacks, only `before_step` and `after_backward` are called. Each rank
    weighs in the average by the size of its shard; the last average is at the end of each epoch. The losses,
    one per epoch, are means over the samples of all ranks; the loss of each batch is taken before its own
    step. With `every` = 1 and shards of one size, the result is that of `train`, up to rounding.

    Collective. Raise CollectiveError on every rank if the ranks' settings differ.
    """
    settings = epochs, lr, every, model.name
    expected = comm.bcast(settings)
    fault = None
    if every < 1 or epochs < 1:
        fault = f"expected every ≥ 1 and epochs ≥ 1, got {every} and {epochs}"
    elif isinstance(algorithm, Averaging) and (algorithm.aggregate == "sum" or algorithm.compress != "none"):
        fault = f"expected an algorithm that averages parameters, without compression, got {algorithm}"
    elif settings != expected:
        fault = f"expected (epochs, lr, every, model) = {expected} as on rank 0, got {settings}"
    raise_together(comm, fault)
    held = len(batches.epoch(1).x)
    n = check_before_averaging(comm, model.params, held)
    comm.Bcast(model.params)
    comm.Bcast(model.buffers)
    losses = []
    for epoch in range(1, epochs + 1):
        batch = batches.epoch(epoch)
        loss_sum, steps = 0.0, len(batch.slices)
        for number in range(steps):
            for callback in callbacks:
                callback.before_step()
            x, y = batch.local(number)
            samples = len(x)
            if samples:
                loss_sum += samples * model.loss_and_gradient(x, y)
                for callback in callbacks:
                    callback.after_backward(model, samples)
                sgd_step(model.params, model.grads, lr)
            if (number + 1) % every == 0 or number + 1 == steps:
                algorithm(comm, model.params, held / n)
        losses.append(comm.allreduce(loss_sum) / n)
    return losses
