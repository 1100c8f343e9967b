"""The speed of each rank, which determines `data.weighted` shards."""

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
    """Return each rank's speed in samples per second, by rank, measured while all ranks compute. Collective.

    Shapes: x (n, …) and y as the model's targets: some samples of this rank, at least one. The speed is n
    over the median time that a forward and a backward pass take. `model.grads` is overwritten. A `straggler`
    makes this rank slow.
    """
    straggler = straggler or Straggler((), comm.rank, comm.size)
    times = []
    for _ in range(REPEATS):
        comm.Barrier()
        start = perf_counter()
        straggler.compute(model.loss_and_gradient, x, y)
        times.append(perf_counter() - start)
    return comm.allgather(len(x) / float(np.median(times)))
