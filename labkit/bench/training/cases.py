"""What `labkit bench training` measures: set-ups on a number of ranks, and the parts of their iterations.

The set-ups are those of report C: 1 is one rank alone, 2a averages through the root, 2b by all-reduce, and 3
averages bucket by bucket while the backward pass goes on, as PyTorch's DistributedDataParallel (DDP) does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ALONE, ROOT, ALLREDUCE, OVERLAP = "one-rank", "root", "allreduce", "overlap"
SHARED_MEMORY, RING, NO_AVERAGING = "shared-memory", "ring", "no-averaging"
DDP, DDP_NO_OVERLAP, DDP_NO_SYNC, TORCH_ALONE = "ddp-gloo", "ddp-no-overlap", "ddp-no-sync", "torch-one-rank"

IN_REPORT = {ALONE: "1", ROOT: "2a", ALLREDUCE: "2b", OVERLAP: "3", DDP: "3"}
BY_PYTORCH = DDP, DDP_NO_OVERLAP, DDP_NO_SYNC, TORCH_ALONE


class Case(NamedTuple):
    """A set-up on `p` ranks, with a global batch of `batch` images."""

    setup: str
    p: int
    batch: int

    @property
    def size(self) -> str:
        """Return the ranks and the local batch, such as "4x64"; rounded down if the local batches differ."""
        return f"{self.p}x{self.batch // self.p}"


class StepTimes(NamedTuple):
    """When (s, perf_counter) a rank began a step, had its gradient, and began to average; ended; had updated.

    If averaging begins before the gradient is ready, or no barrier shows when the others are, `start` is
    `ready`.
    """

    begin: float
    ready: float
    start: float
    end: float
    done: float


Run = Callable[[], Sequence[StepTimes]]  # trains for a few steps


@dataclass(frozen=True)
class Time:
    """The time (s) of one iteration, and of its parts.

    A rank computes its gradient, waits for the slowest rank, and averages (the exposed communication). The
    rest is the optimiser's update and what the loop does between the steps. Where no barrier parts the two,
    waiting counts as exposed communication.
    """

    iteration: float
    compute: float
    wait: float
    exposed: float

    @property
    def parts(self) -> dict[str, float]:
        """Return the parts by name; they add up to the iteration."""
        rest = self.iteration - self.compute - self.wait - self.exposed
        return {"compute": self.compute, "wait": self.wait, "exposed": self.exposed, "rest": rest}

    @classmethod
    def of(cls, steps: Sequence[StepTimes]) -> Time:
        """Return the mean over all steps but the first, which still allocates memory.

        The iteration's time is from one step's end to the next, without a barrier in between.
        """
        first, *others = steps
        n = len(others)
        return cls(
            (others[-1].done - first.done) / n,
            sum(step.ready - step.begin for step in others) / n,
            sum(step.start - step.ready for step in others) / n,
            sum(step.end - step.start for step in others) / n,
        )


def without_overlap(one_node: bool) -> str:
    """Return the set-up that averages with the algorithm of OVERLAP, but after the backward pass."""
    return SHARED_MEMORY if one_node else RING


def setups(p: int, batch: int, *, one_node: bool, pytorch: bool) -> list[Case]:
    """Return all set-ups on p ranks with a local batch of `batch`, and one rank with all their images."""
    names = [ALONE, TORCH_ALONE]
    if p > 1:
        names += [ROOT, ALLREDUCE, without_overlap(one_node), OVERLAP, NO_AVERAGING]
        names += [DDP, DDP_NO_OVERLAP, DDP_NO_SYNC]
    return [
        Case(name, 1 if name in (ALONE, TORCH_ALONE) else p, p * batch)
        for name in names
        if pytorch or name not in BY_PYTORCH
    ]


def scaling(p: int, batch: int, *, one_node: bool, pytorch: bool, strong: bool) -> list[Case]:
    """Return some set-ups on 1 … p ranks.

    Strong scaling divides a global batch of p · `batch` among the ranks; in weak scaling, each rank has a
    local batch of `batch`.
    """
    found = []
    for ranks in range(1, p + 1):
        names = [ALONE, TORCH_ALONE] if ranks == 1 else [ALLREDUCE, without_overlap(one_node), OVERLAP, DDP]
        found += [
            Case(name, ranks, (p if strong else ranks) * batch)
            for name in names
            if pytorch or name not in BY_PYTORCH
        ]
    return found
