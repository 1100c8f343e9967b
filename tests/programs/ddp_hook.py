"""What tests/test_torch.py runs on four ranks: DDP with a hook of the lab beside plain DDP.

Rank 0 prints a line for each number of ranks, size of buckets and algorithm: p, the number of buckets, the
algorithm, and the losses of both, as JSON.
"""

import json
import threading

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

from labkit.bench.collectives import gloo
from labkit.comm import Averaging, sleeping_barrier
from labkit.exercises import catalogue
from labkit.schedules import ALLREDUCE
from labkit.torch import ddp_hook

STEPS, BATCH = 50, 8
CAPS = 25.0, 0.02, 0.004  # MB: one bucket, some, and one for each layer or so


def ring_sum(comm, array):
    own = catalogue.find("ring_reduce_scatter").reference(comm, array)
    catalogue.find("ring_allgather").reference(comm, own.copy(), array)


def network():
    torch.manual_seed(1)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(48, 48), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(48, 10))


def losses(comm, model):
    """Return the mean loss of all ranks in each step; every rank trains on batches of its own."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.Generator().manual_seed(comm.rank)
    found = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, 48, generator=batches)
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        loss.backward()
        sgd.step()
        found.append(loss.item())
    return np.mean(comm.allgather(found), axis=0).tolist()


def compare(comm, group):
    """Print the losses with each size of buckets: by the ring, on all ranks also by another algorithm."""
    others = {"mpi": "mpi", "function": ring_sum, "schedule": ALLREDUCE["halving-doubling"](comm.size)}
    expected = losses(comm, ddp(CAPS[1], group))
    for cap, (other, algorithm) in zip(CAPS, others.items(), strict=True):
        more = {other: algorithm} if comm.size == MPI.COMM_WORLD.size else {}
        for name, averages in {"ring": "ring", **more}.items():
            numbers, inner = set(), ddp_hook(comm, averages)

            def hook(state, bucket, numbers=numbers, inner=inner):
                numbers.add(bucket.index())
                return inner(state, bucket)

            model = ddp(cap, group)
            model.register_comm_hook(None, hook)
            found = losses(comm, model)
            if comm.rank == 0:
                print(json.dumps([comm.size, len(numbers), name, found, expected]), flush=True)


def ddp(cap, group=None):
    return DistributedDataParallel(network(), process_group=group, bucket_cap_mb=cap)


def overlap(comm):
    """Hold the backward pass up at the first layer until the bucket of the last layers is averaged."""
    averaged = threading.Event()

    def add_up(comm, array):
        comm.Allreduce(MPI.IN_PLACE, array)
        averaged.set()

    model = ddp(CAPS[-1])
    model.register_comm_hook(None, ddp_hook(comm, add_up))
    model(
        torch.ones(1, 48)
    ).sum().backward()  # DDP makes its buckets in the first pass, which has a single one
    averaged.clear()
    model.module[0].register_full_backward_pre_hook(
        lambda *_: print("OVERLAPS", averaged.wait(60), flush=True)
    )
    model(torch.ones(1, 48)).sum().backward()


def fail(comm):
    """Print what `backward` raises if a bucket cannot be averaged; expect compression to be refused."""
    try:
        ddp_hook(comm, Averaging("ring", compress="float16"))
    except ValueError as error:
        assert "without compression" in str(error)
    else:
        raise AssertionError("expected ValueError")
    model = ddp(CAPS[-1])
    model.register_comm_hook(None, ddp_hook(comm, lambda comm, array: 1 / 0))
    try:
        model(torch.ones(1, 48)).sum().backward()
    except Exception as error:
        print("RAISED", type(error).__name__, flush=True)


def main():
    world = MPI.COMM_WORLD
    with gloo(world) as all_reduce:
        assert all_reduce is not None
        for p in range(1, world.size + 1):
            group = torch.distributed.new_group(list(range(p)))
            comm = world.Split(0 if world.rank < p else MPI.UNDEFINED, world.rank)
            if comm:
                compare(comm, group)
            sleeping_barrier(world)  # ranks that are not needed leave the cores to the others
        overlap(world)
        fail(world)


main()
