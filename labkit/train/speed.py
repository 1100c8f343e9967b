"""How fast each rank is: what shards weighted by speed go by."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from mpi4py import MPI

from labkit.nn import Model
from labkit.train.bottleneck import Straggler

REPEATS = 15


def speeds(
    comm: MPI.Intracomm, model: Model, x: np.ndarray, y: np.ndarray, straggler: Straggler | None = None
) -> list[float]:
    """Return how many samples per second each rank works through, by rank, while all ranks are at work.

    Shapes: x (n, …), y as the model's targets: some samples of this rank's, at least one. Takes the loss and
    gradient of them a few times, and the median of the times; `model.grads` is overwritten, nothing else. A
    `hindrance` makes this rank slow. Collective.
    """
    straggler = straggler or Straggler((), comm.rank, comm.size)
    times = []
    for _ in range(REPEATS):
        comm.Barrier()
        start = perf_counter()
        straggler.compute(model.loss_and_gradient, x, y)
        times.append(perf_counter() - start)
    return comm.allgather(len(x) / float(np.median(times)))
