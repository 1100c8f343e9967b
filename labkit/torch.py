"""An all-reduce of the lab inside PyTorch: a communication hook of DistributedDataParallel (DDP).

No other module imports PyTorch, except those of labkit.bench and benchmarks that compare the lab with it.
"""

# Annotations are not postponed here: DDP reads those of a hook.
from collections.abc import Callable

import numpy as np
import torch
from mpi4py import MPI
from torch.distributed import GradBucket

from labkit.comm import Averaging
from labkit.comm.running import Steps, steps
from labkit.schedules import Schedule
from labkit.train.overlap import BucketQueue

Sums = Callable[[MPI.Intracomm, np.ndarray], object]  # leaves the sum of all ranks' arrays in the array
Hook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]


def ddp_hook(comm: MPI.Intracomm, algorithm: str | Averaging | Schedule | Sums = "ring") -> Hook:
    """Return a hook that averages DDP's buckets over the ranks of `comm`, while the backward pass goes on.

        model = DistributedDataParallel(model)
        model.register_comm_hook(None, ddp_hook(MPI.COMM_WORLD, "ring"))

    `algorithm` is the name of one of `labkit.comm.ALGORITHMS`, such an algorithm without compression, an
    all-reduce schedule for the ranks of `comm`, or a function that leaves the sum of all ranks' arrays in its
    second argument, like notebook 05's `ring_sum(comm, array)`. A helper thread runs the function in one go,
    and drives the others a little at a time (see `labkit.train.overlap`).

    Parameters must be on the CPU, and float32 or float64. `comm` must have the ranks of DDP's process group.
    Every rank counts the same, as in DDP's own all-reduce. Make one hook for each model: models must not
    share it. Collective.
    """
    start_average = _average_starter(algorithm, comm.size)
    # Its own communicator, so that no message of the caller's own is taken for one of a bucket's.
    duplicate = comm.Dup()
    queue = BucketQueue(duplicate)

    def average(bucket: torch.Tensor, averaged: torch.futures.Future[torch.Tensor]) -> Steps:
        yield from start_average(duplicate, bucket.numpy())
        averaged.set_result(bucket)

    def hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        averaged = torch.futures.Future[torch.Tensor]()
        try:
            queue.put(f"bucket {bucket.index() + 1}", average(bucket.buffer(), averaged))
            # DDP calls the hook in the same order on every rank. The last bucket is complete when the
            # backward pass ends: nothing is left to overlap with, so waiting here costs no time.
            if bucket.is_last():
                queue.finish()
        except BaseException:  # an error of one rank, a hang: no message may arrive in the model's memory
            queue.close()
            raise
        return averaged

    return hook


def _average_starter(
    algorithm: str | Averaging | Schedule | Sums, p: int
) -> Callable[[MPI.Intracomm, np.ndarray], Steps]:
    """Return a function that begins to average an array."""
    if isinstance(algorithm, str):
        algorithm = Averaging(algorithm)
    if isinstance(algorithm, Schedule) and (algorithm.collective, algorithm.p) != ("allreduce", p):
        raise ValueError(
            f"expected an allreduce schedule for {p} ranks, got {algorithm.collective} for {algorithm.p}"
        )
    if isinstance(algorithm, Averaging):
        if algorithm.compress != "none":  # DDP's buckets change, so there is no residual to keep for each
            raise ValueError(f"expected an algorithm without compression, got {algorithm.compress!r}")
        averaging = algorithm
        return lambda comm, array: averaging.steps(comm, array, 1 / p)

    def by_sum(comm: MPI.Intracomm, array: np.ndarray) -> Steps:
        array *= array.dtype.type(1 / p)
        if isinstance(algorithm, Schedule):
            yield from steps(comm, algorithm, array)
        else:
            algorithm(comm, array)

    return by_sum
