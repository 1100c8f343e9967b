"""What `labkit bench training` measures, and the rows and tables of it: set-ups on a number of ranks.

The set-ups are those of report C: 1 is one rank alone, 2a averages through the root, 2b by all-reduce, and 3
averages bucket by bucket while the backward pass goes on, as PyTorch's DistributedDataParallel (DDP) does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.bench.rows import Row, rows_of

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


def scaling_cases(p: int, batch: int, *, one_node: bool, pytorch: bool, strong: bool) -> list[Case]:
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


Times = Mapping[Case, Time]


def setup_rows(model: str, times: Times, place: str) -> list[Row]:
    """Return rows of our set-ups against DDP and our all-reduce, of the parts, and of what overlap hides.

    A part is compared with the iteration, so its ratio is a fraction, and those of a set-up add up to 1.
    """
    found = []
    by_name = {case.setup: case for case in times}
    iteration = {name: 1e3 * times[case].iteration for name, case in by_name.items()}
    for name, case in by_name.items():
        where = f"{model}/{case.size}/{name}/{place}"
        against = (TORCH_ALONE,) if case.p == 1 else (DDP, ALLREDUCE)
        if name not in BY_PYTORCH:
            medians = {other: iteration[other] for other in (name, *against) if other in iteration}
            found += rows_of(where, medians, "ms")
        for part, time in parts(times, case).items():
            found += rows_of(f"{where}/{part}", {part: 1e3 * time, "iteration": iteration[name]}, "ms")
        if name in (OVERLAP, DDP):
            for hidden, whole in communication(times, name):
                medians = {"hidden": 1e3 * hidden, "communication": 1e3 * whole}
                found += rows_of(f"{where}/hidden", medians, "ms")
    return found


def parts(times: Times, case: Case) -> dict[str, float]:
    """Return the parts (s) of a case's iteration, by name.

    DDP communicates within the backward pass, so its exposed communication cannot be timed: it is what this
    pass takes longer than without communication (`no_sync`).
    """
    own = times[case].parts
    without = times.get(case._replace(setup=DDP_NO_SYNC))
    if case.setup == DDP and without:
        own["exposed"] += own["compute"] - without.compute
        own["compute"] = without.compute
    return own


def communication(times: Times, setup: str) -> list[tuple[float, float]]:
    """Return how much communication (s) an overlapping set-up hides, and how much there is, in one pair.

    Return no pair if a set-up to compare with was not measured, or if communication takes no time.
    """
    iteration = {case.setup: time.iteration for case, time in times.items()}
    if setup == DDP:
        whole, nothing = DDP_NO_OVERLAP, DDP_NO_SYNC
    else:
        (whole,) = {RING, SHARED_MEMORY} & iteration.keys() or {""}
        nothing = NO_AVERAGING
    if not {setup, whole, nothing} <= iteration.keys() or iteration[whole] <= iteration[nothing]:
        return []
    return [(iteration[whole] - iteration[setup], iteration[whole] - iteration[nothing])]


def scaling_rows(model: str, times: Times, place: str, kind: str) -> list[Row]:
    """Return rows of images per second against p times those of one rank: the ratio is the efficiency."""
    found = []
    for case in times:
        if case.p > 1:
            ideal = case.p * images_per_s(times, _alone(times, case))
            where = f"{model}/{kind}/{case.size}/{case.setup}/{place}"
            found += rows_of(where, {case.setup: images_per_s(times, case), "linear": ideal}, "images/s")
    return found


def images_per_s(times: Times, case: Case) -> float:
    """Return how many images all ranks together train on in a second."""
    return case.batch / times[case].iteration


def _alone(times: Times, case: Case) -> Case:
    """Return the case of one rank that this case's speed-up refers to, by the same library."""
    name = TORCH_ALONE if case.setup in BY_PYTORCH else ALONE
    (found,) = (each for each in times if each.setup == name)
    return found


def setup_table(times: Times) -> str:
    """Return the set-ups with their times, images per second and parts, as text in aligned columns."""
    ddp = next((time.iteration for case, time in times.items() if case.setup == DDP), None)
    lines = [
        f"{'set-up':14}  {'report C':8}  {'ranks':>6}  {'iteration':>9}  {'images/s':>8}  "
        f"{'compute':>7}  {'wait':>7}  {'exposed':>7}  {'rest':>6}{'  × DDP' if ddp else ''}"
    ]
    for case, time in times.items():
        ratio = f"{time.iteration / ddp:5.2f}" if ddp else ""
        compute, wait, exposed, rest = (1e3 * part for part in parts(times, case).values())
        lines.append(
            f"{case.setup:14}  {IN_REPORT.get(case.setup, ''):8}  {case.size:>6}  "
            f"{1e3 * time.iteration:9.1f}  {images_per_s(times, case):8.1f}  "
            f"{compute:7.1f}  {wait:7.1f}  {exposed:7.1f}  {rest:6.1f}  {ratio}".rstrip()
        )
    lines.append("Times in ms: an iteration, and its parts. Exposed: communication that the backward pass")
    lines.append("does not hide. With overlap and DDP, waiting for the slowest rank is part of it.")
    for name, subject in ((OVERLAP, "Overlap"), (DDP, "PyTorch's DDP")):
        for hidden, whole in communication(times, name):
            if hidden > 0:
                part = f"{1e3 * hidden:.0f} of {1e3 * whole:.0f} ms of communication"
                lines.append(f"{subject} hides {part} ({100 * hidden / whole:.0f} %).")
            else:  # communication takes cores from the backward pass
                lines.append(
                    f"{subject} hides no communication: it makes the iteration {-1e3 * hidden:.0f} ms longer."
                )
    return "\n".join(lines)


def scaling_table(times: Times) -> str:
    """Return images per second, speed-up and efficiency by number of ranks, as text in aligned columns."""
    lines = [f"{'set-up':14}   ranks  iteration  images/s  speed-up  efficiency"]
    for case, time in times.items():
        rate = images_per_s(times, case)
        speed_up = rate / images_per_s(times, _alone(times, case))
        lines.append(
            f"{case.setup:14}  {case.size:>6}  {1e3 * time.iteration:9.1f}  {rate:8.1f}  {speed_up:8.2f}  "
            f"{speed_up / case.p:10.2f}"
        )
    lines.append("Times in ms. The speed-up compares images per second with one rank's, by the same library.")
    lines.append("The efficiency is speed-up / p.")
    return "\n".join(lines)


def core_limit(ranks: Sequence[int], cores: int) -> str:
    """Return a line that says which numbers of ranks have too few cores for a linear speed-up, or nothing."""
    limits = ", ".join(f"{cores / p:.2f} on {p} ranks" for p in ranks if p > cores)
    if not limits:
        return ""
    return (
        f"\nThe ranks share {cores} core{'s' if cores > 1 else ''}: the speed-up is at most {cores}, the "
        f"efficiency at most {limits}."
    )
