"""Local SGD: each rank takes a few steps of its own, and then the ranks average their parameters.

So they meet less often, and a rank that is slow now and then is waited for less. What is learnt is not what
synchronous training learns: between two meetings each rank follows its own shard. Source: S. U. Stich, Local
SGD Converges Fast and Communicates Little, ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from labkit.comm import Algorithm, agree, allreduce, raise_together
from labkit.nn import Model, sgd_step
from labkit.train.bottleneck import Straggler


def local_sgd(
    comm: MPI.Intracomm,
    model: Model,
    x: np.ndarray,
    y: np.ndarray,
    *,
    epochs: int,
    lr: float,
    batch: Sequence[slice],
    every: int,
    algorithm: Algorithm = allreduce,
    straggler: Straggler | None = None,
) -> list[float]:
    """Train `model` on the ranks' shards, averaging its parameters every so many steps; return the losses.

    Shapes: as for `train`: x (n_rank, …), `batch` a slice of this rank's shard for each step (`data.dealt`,
    `data.in_order`), as many on every rank. Parameters are averaged weighted by the size of the shards, also
    at the end of each epoch. The losses, one an epoch, are means over the samples of all ranks, each batch
    taken before its own step. With `every` = 1 and shards of one size it is `train`, to rounding.

    Collective. Ranks that disagree on the steps are a CollectiveError on every rank.
    """
    settings = epochs, lr, every, len(batch), model.name
    expected = comm.bcast(settings)
    fault = None
    if every < 1 or epochs < 1:
        fault = f"expected every ≥ 1 and epochs ≥ 1, got {every} and {epochs}"
    elif settings != expected:
        fault = f"expected (epochs, lr, every, steps, model) = {expected} as on rank 0, got {settings}"
    raise_together(comm, fault)
    n = agree(comm, model.params, len(x))
    straggler = straggler or Straggler((), comm.rank, comm.size)
    comm.Bcast(model.params)
    losses = []
    for _ in range(epochs):
        loss_sum = 0.0
        for number, part in enumerate(batch, start=1):
            straggler.lose_time()
            if part.stop > part.start:
                loss = straggler.compute(model.loss_and_gradient, x[part], y[part])
                loss_sum += (part.stop - part.start) * loss
                sgd_step(model.params, model.grads, lr)
            if number % every == 0 or number == len(batch):
                algorithm(comm, model.params, len(x) / n)
        losses.append(comm.allreduce(loss_sum) / n)
    return losses
