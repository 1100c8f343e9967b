"""PyTorch's set-ups: DistributedDataParallel (DDP) over gloo, with the same model, batches and optimiser.

DDP's own defaults hold (buckets of 25 MB), except that it does not broadcast the buffers before each step:
`labkit.train` does not do so either.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from time import perf_counter
from typing import Any

import numpy as np

from labkit.bench.pytorch import LR, MOMENTUM, WEIGHT_DECAY, pytorch_model
from labkit.bench.training import cases
from labkit.bench.training.cases import Case, Run, StepTimes

Samples = tuple[np.ndarray, np.ndarray]


class Torch:
    """The PyTorch models of this rank, one for each number of ranks. All ranks of the process group make it.

    The process group must exist (`labkit.bench.algorithms.gloo`); `rank` is this rank in it.
    """

    def __init__(self, name: str, rank: int, sizes: Sequence[int], timeout: timedelta) -> None:
        import torch  # noqa: PLC0415

        self._models: dict[int, Any] = {}
        self._groups: dict[int, Any] = {}
        for p in sorted(set(sizes)):
            group = torch.distributed.new_group(list(range(p)), timeout=timeout)
            if rank >= p:
                continue
            model = pytorch_model(name)[0]
            if p > 1:
                wrapper = torch.nn.parallel.DistributedDataParallel
                with warnings.catch_warnings():  # new versions want another name, which older ones lack
                    warnings.simplefilter("ignore", FutureWarning)
                    model = wrapper(model, process_group=group, broadcast_buffers=False)
            self._models[p], self._groups[p] = model, group

    def run(self, case: Case, samples: Samples, slices: Sequence[slice], report: Callable[[], None]) -> Run:
        """Return a function that trains on this rank's samples, a slice per step, and returns the times."""
        import torch  # noqa: PLC0415

        model, group = self._models[case.p], self._groups[case.p]
        sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        x, y = (torch.from_numpy(array) for array in samples)
        locally = case.setup in (cases.DDP_NO_SYNC, cases.DDP_NO_OVERLAP)

        def run() -> Sequence[StepTimes]:
            steps = []
            for part in slices:
                begin = perf_counter()
                with model.no_sync() if locally else nullcontext():
                    sgd.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(x[part]), y[part])
                    loss.backward()
                ready = perf_counter()
                if case.setup == cases.DDP_NO_OVERLAP:
                    _average(model, group, case.p)
                end = perf_counter()
                sgd.step()
                steps.append(StepTimes(begin, ready, ready, end, perf_counter()))
                report()
            return steps

        return run


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
