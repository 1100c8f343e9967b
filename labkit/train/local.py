"""Local SGD: each rank takes a few steps of its own, then the ranks average their parameters.

The ranks communicate less often, and wait less for a rank that is slow for a short time. The result is not
that of synchronous training, because between two averages each rank follows its own shard.
Source: S. U. Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from labkit.comm import ALGORITHMS, Averages, check_before_averaging, raise_together
from labkit.nn import Model, sgd_step
from labkit.train.batches import Batches
from labkit.train.callbacks import Callback
from labkit.train.replicas import broadcast_model


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
    elif settings != expected:
        fault = f"expected (epochs, lr, every, model) = {expected} as on rank 0, got {settings}"
    raise_together(comm, fault)
    held = len(batches.epoch(1).x)
    n = check_before_averaging(comm, model.params, held)
    broadcast_model(comm, model)
    losses = []
    for epoch in range(1, epochs + 1):
        batch = batches.epoch(epoch)
        loss_sum, steps = 0.0, len(batch.slices)
        for number in range(steps):
            for callback in callbacks:
                callback.before_step()
            x, y = batch.local(number)
            if samples := len(x):
                loss_sum += samples * model.loss_and_gradient(x, y)
                for callback in callbacks:
                    callback.after_backward(model, samples)
                sgd_step(model.params, model.grads, lr)
            if (number + 1) % every == 0 or number + 1 == steps:
                algorithm(comm, model.params, held / n)
        losses.append(comm.allreduce(loss_sum) / n)
    return losses
