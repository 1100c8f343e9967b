"""Training by PyTorch's DistributedDataParallel (DDP) and FSDP2 over gloo, to compare with the lab's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.bench.collectives import TIMEOUT
from labkit.bench.pytorch import LR, MOMENTUM, WEIGHT_DECAY, pytorch_model
from labkit.train.steps import Step

DDP, DDP_NO_OVERLAP, DDP_NO_SYNC, TORCH_ALONE = "ddp-gloo", "ddp-no-overlap", "ddp-no-sync", "torch-one-rank"
DDP_HOOK = "ddp-hook/ring"  # DDP that averages by the lab's ring
FSDP2 = "fsdp2"
BY_PYTORCH = DDP, DDP_HOOK, DDP_NO_OVERLAP, DDP_NO_SYNC, FSDP2, TORCH_ALONE

STEPS = {"vgg11": 3, "lenet5": 21, "mlp": 21}  # of a turn; the first is not measured
Samples = tuple[np.ndarray, np.ndarray]
Run = Callable[[], Sequence[Step]]  # trains for a few steps


class Case(NamedTuple):
    """A set-up on `p` ranks, with a global batch of `batch` images."""

    setup: str
    p: int
    batch: int

    @property
    def size(self) -> str:
        """Return the ranks and the local batch, such as "4x64"; rounded down if the local batches differ."""
        return f"{self.p}x{self.batch // self.p}"


def pytorch_runs(
    name: str, comms: Mapping[int, MPI.Intracomm]
) -> Callable[[Case, Samples, Sequence[slice]], Run]:
    """Return a function that makes the runs of PyTorch's set-ups.

    `comms` has the communicator of a case's ranks by their number; other ranks must not make its runs. A run
    trains on a slice of the samples in each step. DDP with and without synchronisation trains one model. The
    process group of all ranks must exist (`labkit.bench.collectives.gloo`). Collective.
    """
    import torch  # noqa: PLC0415

    groups = {p: torch.distributed.new_group(list(range(p)), timeout=TIMEOUT) for p in comms}

    @cache
    def model_of(p: int, kind: str) -> Any:
        model = pytorch_model(name)[0]
        if kind == FSDP2:
            from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

            mesh = torch.distributed.DeviceMesh.from_group(groups[p], "cpu")
            for layer in model:
                if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        elif p > 1:
            with warnings.catch_warnings():  # new versions want another name, which older ones lack
                warnings.simplefilter("ignore", FutureWarning)
                model = torch.nn.parallel.DistributedDataParallel(
                    model, process_group=groups[p], broadcast_buffers=False
                )
        if kind == DDP_HOOK:
            from labkit.torch import ddp_hook  # noqa: PLC0415

            model.register_comm_hook(None, ddp_hook(comms[p], "ring"))
        return model

    def run_of(case: Case, samples: Samples, slices: Sequence[slice]) -> Run:
        model = model_of(case.p, case.setup if case.setup in (DDP_HOOK, FSDP2) else DDP)
        sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        x, y = (torch.from_numpy(array) for array in samples)
        locally = case.setup in (DDP_NO_SYNC, DDP_NO_OVERLAP)

        def take_steps() -> Sequence[Step]:
            steps = []
            for number, part in enumerate(slices, 1):
                begin = perf_counter()
                with model.no_sync() if locally else nullcontext():
                    sgd.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(x[part]), y[part])
                    loss.backward()
                ready = perf_counter()
                if case.setup == DDP_NO_OVERLAP:
                    _average(model, groups[case.p], case.p)
                end = perf_counter()
                sgd.step()
                steps.append(Step(1, number, 0, begin, ready, ready, end, perf_counter()))
            return steps

        return take_steps

    return run_of


def _average(model: Any, group: Any, p: int) -> None:
    """Average all gradients by one all_reduce, after the backward pass."""
    import torch  # noqa: PLC0415

    gradients = [parameter.grad for parameter in model.parameters()]
    joined = torch.cat([gradient.view(-1) for gradient in gradients])
    torch.distributed.all_reduce(joined, group=group)
    joined /= p
    parts = joined.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
