"""`python -m benchmarks training`: the time of an iteration in several set-ups, in turns on the same ranks.

Each round runs every set-up once, in changing order. A turn is a short training run of a few steps, all on
the same model and the same samples. It takes as long as on its slowest rank. Ranks that a set-up does not
need are asleep meanwhile. Ours is a call of `labkit.train.train`, the function that users call. PyTorch's
DistributedDataParallel (DDP) trains over gloo, with the same model, batches and optimiser. DDP's own defaults
hold (buckets of 25 MB), except that it does not broadcast the buffers before each step: `labkit.train` does
not do so either.

The set-ups are those of report C: 1 is one rank alone, 2a averages through the root, 2b by all-reduce, and 3
averages bucket by bucket while the backward pass goes on, as DDP does. Then there is sharded training: ZeRO-3
by the ring, and PyTorch's FSDP2, which shards each convolutional and dense layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from benchmarks.step import batch_for
from labkit.bench.collectives import FRAME, gloo
from labkit.bench.ddp import (
    BY_PYTORCH,
    DDP,
    DDP_HOOK,
    DDP_NO_OVERLAP,
    DDP_NO_SYNC,
    FSDP2,
    STEPS,
    TORCH_ALONE,
    Case,
    Run,
    Samples,
    pytorch_runs,
)
from labkit.bench.pytorch import LR, MOMENTUM, WEIGHT_DECAY, has_fsdp2
from labkit.bench.rows import Row, interleaved, rows_of, table
from labkit.comm import ALGORITHMS, raise_together, sleeping_barrier
from labkit.comm.running import SEGMENT_BYTES
from labkit.comm.timing import Allreduce, Report, count_hosts, progress
from labkit.comm.timing import measure as measure_collectives
from labkit.data import local_batches
from labkit.nn import MODELS, SGD, Model
from labkit.schedules import ALLREDUCE as SCHEDULES
from labkit.schedules import CostModel, cost
from labkit.train.batches import Batches
from labkit.train.callbacks import Timeline
from labkit.train.loop import train
from labkit.train.overlap import Buckets
from labkit.train.steps import Step
from labkit.units import KIB, MIB, format_bandwidth
from mpiwatch.processes import cores

ALONE, ROOT, ALLREDUCE, OVERLAP = "one-rank", "root", "allreduce", "overlap"
SHARED_MEMORY, RING, NO_AVERAGING, ZERO_3 = "shared-memory", "ring", "no-averaging", "zero-3"
OVERLAP_HALVING = "overlap/halving-doubling"  # predicted only
HERE = "hosts"  # the place of rows measured on several hosts, and of the links between them

AGAINST = {ALONE: (TORCH_ALONE,), ZERO_3: (FSDP2, OVERLAP)}


EXPLANATION = """\
The parts of an iteration: compute, wait (for the slowest rank), exposed (communication that the backward pass
does not hide; with overlap and DDP, waiting is part of it) and rest. The communication that overlap hides is
compared with all communication and, where it is known, with what the backward pass can hide."""
# Predictions: the most ranks, and the sizes (bytes) by which the links are measured, each for so long (s).
MOST_RANKS, LINK_SIZES, LINK_S = 256, (KIB, 16 * MIB), 2.0


@dataclass(frozen=True)
class Time:
    """The time (s) of one iteration, and of its parts.

    A rank computes its gradient, waits for the slowest rank, and averages (the exposed communication). The
    rest is the optimiser's update and what the loop does between the steps. Where no barrier parts the two,
    as with overlap, waiting counts as exposed communication.

    With buckets, `layers` has, for each layer from the last to the first, where its gradient starts, and the
    time from the iteration's begin to when it was complete.
    """

    iteration: float
    compute: float
    wait: float
    exposed: float
    layers: tuple[tuple[int, float], ...] = ()

    @property
    def backward(self) -> float:
        """Return how long the backward pass takes, except for the last layer's; 0 without buckets."""
        return self.layers[-1][1] - self.layers[0][1] if self.layers else 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Return the parts by name; they add up to the iteration."""
        rest = self.iteration - self.compute - self.wait - self.exposed
        return {"compute": self.compute, "wait": self.wait, "exposed": self.exposed, "rest": rest}

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Time:
        """Return the mean over all steps but the first, which still allocates memory.

        The iteration's time is from one step's end to the next, without a barrier in between.
        """
        first, *others = steps
        n = len(others)
        gathers = [sum(b - a for a, b in step.gathers if b <= step.ready) for step in others]
        return cls(
            (others[-1].done - first.done) / n,
            (sum(step.ready - step.begin for step in others) - sum(gathers)) / n,
            sum(step.wait_s for step in others) / n,
            sum(step.transfer_s for step in others) / n,
            tuple(
                (same[0][0], sum(end - step.begin for step, (_, end) in zip(others, same, strict=True)) / n)
                for same in zip(*(step.layers for step in others), strict=True)
            ),
        )


def our_setups(one_node: bool) -> dict[str, dict[str, Any]]:
    """Return our set-ups on several ranks, with the options of `train` that make each.

    The third averages with the algorithm of OVERLAP, but after the backward pass.
    """
    after = SHARED_MEMORY if one_node else RING
    return {
        ROOT: {"algorithm": ALGORITHMS[ROOT]},
        ALLREDUCE: {"algorithm": ALGORITHMS["mpi"]},
        after: {"algorithm": ALGORITHMS[after]},
        OVERLAP: {"algorithm": ALGORITHMS[after], "buckets": Buckets()},
        ZERO_3: {"algorithm": ALGORITHMS[RING], "shard_state": "parameters"},
        NO_AVERAGING: {"algorithm": _no_averaging},
    }


def _no_averaging(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Leave the gradient as it is."""


def cases_of(p: int, batch: int, scaling: str | None, *, one_node: bool, pytorch: bool) -> list[Case]:
    """Return all set-ups on p ranks with a local batch of `batch`, and one rank with all their images.

    For `scaling`, return some set-ups on 1 … p ranks instead: "strong" divides a global batch of p · `batch`
    among the ranks; with "weak", each rank has a local batch of `batch`.
    """
    names = [*our_setups(one_node), DDP, DDP_HOOK, DDP_NO_OVERLAP, DDP_NO_SYNC, FSDP2]
    if scaling:
        left_out = ROOT, ZERO_3, DDP_HOOK, DDP_NO_OVERLAP, DDP_NO_SYNC, FSDP2
        names = [name for name in names if name not in left_out]
    alone = 1 if scaling == "weak" else p  # local batches that one rank takes by itself
    found = [Case(name, 1, alone * batch) for name in (ALONE, TORCH_ALONE)]
    for ranks in range(2 if scaling else max(2, p), p + 1):
        found += [Case(name, ranks, (ranks if scaling == "weak" else p) * batch) for name in names]
    return [case for case in found if pytorch or case.setup not in BY_PYTORCH]


def compare(
    comm: MPI.Intracomm,
    model: str,
    batch: int,
    scaling: str | None,
    *,
    setups: Sequence[str],
    links: Sequence[float],
    rounds: int,
) -> tuple[list[Row], str]:
    """Return rows and a text: of all set-ups on all ranks or, for "strong" or "weak" scaling, on 1 … p.

    `batch` is each rank's local batch; in strong scaling, on p ranks. `setups` names the set-ups to measure;
    if it is empty, all are. In strong scaling, `links` are bandwidths (bit/s) for which to predict it on more
    ranks. Rank 0 says what is measured. Collective.
    """
    fault = None
    if links and (comm.size == 1 or (setups and ALONE not in setups)):
        fault = f"expected at least two ranks and the set-up {ALONE} with --predict"
    raise_together(comm, fault)
    report = progress(comm)
    one_node = count_hosts(comm) == 1
    place = "shm" if one_node else HERE
    with gloo(comm) as all_reduce:
        cases = cases_of(comm.size, batch, scaling, one_node=one_node, pytorch=all_reduce is not None)
        if all_reduce is not None and not has_fsdp2():
            cases = [case for case in cases if case.setup != FSDP2]
        names = list(dict.fromkeys(case.setup for case in cases))
        unknown = sorted({*setups} - {*names})
        raise_together(
            comm, f"expected set-ups among {', '.join(names)}, got {unknown[0]!r}" if unknown else None
        )
        cases = [case for case in cases if case.setup in (setups or names)]
        if links:
            cases += [Case(OVERLAP, 1, comm.size * batch // p) for p in ranks_of(comm.size * batch)]
        times = measure(comm, model, cases, rounds, report, one_node=one_node)
    if not scaling:
        found, text = setup_rows(model, times, place), EXPLANATION
    else:
        found, text = scaling_rows(model, times, place, scaling), "The ratio is the efficiency."
        if one_node and cores() < comm.size:
            most = cores() / comm.size
            text += f" The ranks share {cores()} cores: on {comm.size} ranks it is at most {most:.2f}."
    if links:
        models = networks(comm, links, report)
        alpha, beta = 1e6 * models[HERE].alpha, 1e9 * models[HERE].beta
        if one_node:  # the model is of messages, but overlap sends none here
            del models[HERE]
        found += prediction_rows(model, times, models)
        text += f"\nA message on these links: {alpha:.3g} µs + {beta:.3g} ns per byte"
    return found, f"{table(found)}\n{text}"


def measure(
    comm: MPI.Intracomm,
    name: str,
    cases: Sequence[Case],
    rounds: int,
    report: Report,
    *,
    one_node: bool,
) -> dict[Case, Time]:
    """Return the median time of every case, the same on all ranks. Collective."""
    comms = {}
    for p in sorted({case.p for case in cases}):
        comms[p] = cast(MPI.Intracomm, comm.Split(0 if comm.rank < p else MPI.UNDEFINED, comm.rank))
    by_pytorch = {*BY_PYTORCH} & {case.setup for case in cases}
    pytorch_run = pytorch_runs(name, comms) if by_pytorch else None
    model, runs = MODELS[name](), dict[Case, Run]()
    options = {ALONE: {"algorithm": ALGORITHMS["mpi"]}, **our_setups(one_node)}
    for case in cases:
        if comm.rank < case.p:
            n = STEPS[name] * case.batch
            samples = batch_for(model, len(range(comm.rank, n, case.p)))
            if pytorch_run and case.setup in BY_PYTORCH:
                runs[case] = pytorch_run(case, samples, local_batches(n, case.batch, comm.rank, case.p))
            else:
                runs[case] = our_run(comms[case.p], model, case, samples, options[case.setup])
    turns: dict[Case, list[Time]] = {case: [] for case in cases}
    for number in range(rounds):
        for case in reversed(cases) if number % 2 else cases:
            report(f"round {number + 1} of {rounds}: {case.setup}, {case.size}")
            sleeping_barrier(comm)
            own = Time.of(runs[case]()) if case in runs else None
            sleeping_barrier(comm)
            times = [time for time in comm.allgather(own) if time]
            turns[case].append(max(times, key=lambda time: time.iteration))
    for each in comms.values():
        if each:
            each.Free()
    return {case: median(times) for case, times in turns.items()}


def median(times: Sequence[Time]) -> Time:
    """Return the time whose iteration is the median (of an even number, the lower), so its parts add up."""
    return sorted(times, key=lambda time: time.iteration)[(len(times) - 1) // 2]


def our_run(
    comm: MPI.Intracomm, model: Model, case: Case, samples: Samples, options: Mapping[str, Any]
) -> Run:
    """Return a function that trains on this rank's samples, with all ranks of `comm`, and returns the times.

    Collective.
    """
    batch = case.batch
    if case.setup == NO_AVERAGING:  # each rank trains by itself, with its local batch
        comm, batch = MPI.COMM_SELF, batch // case.p
    batches = Batches(comm, *samples, batch)
    fixed: dict[str, Any] = {"epochs": 1, "lr": LR, "buffers": "leave", "check_weights": False}

    def run() -> Sequence[Step]:
        timeline = Timeline(MPI.COMM_SELF)  # of this rank's steps alone
        sgd = SGD(model.params, MOMENTUM, WEIGHT_DECAY)
        train(comm, model, batches, optimizer=sgd, callbacks=[timeline], **fixed, **options)
        return timeline.steps

    return run


Times = Mapping[Case, Time]


def setup_rows(model: str, times: Times, place: str) -> list[Row]:
    """Return rows of our set-ups against DDP and our all-reduce, of the parts, and of what overlap hides.

    A part is compared with the iteration, so its ratio is a fraction, and those of a set-up add up to 1. What
    overlap hides is compared with the communication, and with what could be hidden: the shorter of the
    communication and the backward pass.
    """
    found = []
    by_name = {case.setup: case for case in times}
    iteration = {name: 1e3 * times[case].iteration for name, case in by_name.items()}
    for name, case in by_name.items():
        where = f"{model}/{case.size}/{name}/{place}"
        against = AGAINST.get(name, (DDP, ALLREDUCE))
        if name not in BY_PYTORCH or name == DDP_HOOK:
            medians = {other: iteration[other] for other in (name, *against) if other in iteration}
            found += rows_of(where, medians, "ms")
        for part, time in parts(times, case).items():
            found += rows_of(f"{where}/{part}", {part: 1e3 * time, "iteration": iteration[name]}, "ms")
        if name in (OVERLAP, DDP):
            for hidden, whole in communication(times, name):
                medians = {"hidden": 1e3 * hidden, "communication": 1e3 * whole}
                backward = times[case].backward
                if backward:
                    medians["hideable"] = 1e3 * min(whole, backward)
                found += rows_of(f"{where}/hidden", medians, "ms")
    return found


def parts(times: Times, case: Case) -> dict[str, float]:
    """Return the parts (s) of a case's iteration, by name.

    DDP communicates within the backward pass, also with a hook. So its exposed communication cannot be timed:
    it is what this pass takes longer than without communication (`no_sync`).
    """
    own = times[case].parts
    without = times.get(case._replace(setup=DDP_NO_SYNC))
    if case.setup in (DDP, DDP_HOOK) and without:
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


def _alone(times: Times, case: Case | None = None) -> Case:
    """Return the case of one rank that a speed-up refers to, by the same library as the case (or ours)."""
    name = TORCH_ALONE if case and case.setup in BY_PYTORCH else ALONE
    (found,) = (time for time in times if time.setup == name)
    return found


def ranks_of(batch: int) -> list[int]:
    """Return the numbers of ranks for which strong scaling is predicted: each has at least one image."""
    return [2**k for k in range(MOST_RANKS.bit_length()) if 2**k <= min(batch, MOST_RANKS)]


def networks(comm: MPI.Intracomm, bandwidths: Sequence[float], report: Report) -> dict[str, CostModel]:
    """Return a cost model of the links here and of links of each bandwidth (bit/s), by place. Collective.

    A ring at two sizes gives the latency, which all have, and the inverse bandwidth here: a fit to more sizes
    would find no latency on links that let a burst pass at once. Other links carry TCP's headers as well as
    values. Their reduction cost is the time in which this rank adds one segment to another.
    """
    small, large = LINK_SIZES
    times = measure_collectives(comm, {RING: Allreduce(ALGORITHMS[RING])}, LINK_SIZES, LINK_S, report)
    messages, sent = 2 * (comm.size - 1), 2 * (comm.size - 1) / comm.size * large
    alpha = times[small][RING] / messages
    own, received = np.ones((2, SEGMENT_BYTES // 4), np.float32)
    gamma = interleaved({"add": lambda: np.add(own, received, own)}, 21)["add"] / 1e3 / SEGMENT_BYTES
    return {
        HERE: CostModel(alpha, (times[large][RING] - times[small][RING]) / sent),
        **{
            f"{format_bandwidth(rate)}/predicted": CostModel(alpha, 8 / rate * FRAME, gamma)
            for rate in bandwidths
        },
    }


def predicted(alone: Time, buckets: Sequence[tuple[int, int]], seconds: Callable[[int], float]) -> float:
    """Return the predicted time (s) of an iteration, given that of one rank with the same local batch.

    Buckets are averaged one after the other, each when it is complete; `seconds` returns how long a bucket of
    so many bytes takes. So one bucket is averaged after the backward pass. Computing is not slowed down.
    """
    end = 0.0
    for start, stop in buckets:
        complete = next(time for first, time in alone.layers if first <= start)
        end = max(end, complete) + seconds(4 * (stop - start))
    return alone.iteration + max(0.0, end - alone.layers[-1][1])


def predictions(model: str, times: Times, p: int, links: CostModel) -> dict[Case, float]:
    """Return the predicted time (s) of an iteration on p ranks, by case, for the global batch of `times`."""
    alone = _alone(times)
    n, batch = MODELS[model]().params.size, alone.batch
    step = times[Case(OVERLAP, 1, batch // p)]
    found = {NO_AVERAGING: step.iteration}
    for setup, algorithm, plan in (
        (RING, RING, [(0, n)]),
        (OVERLAP, RING, Buckets().plan(n)),
        (OVERLAP_HALVING, "halving-doubling", Buckets().plan(n)),
    ):
        schedule = SCHEDULES[algorithm](p)
        found[setup] = predicted(step, plan, cache(lambda size, s=schedule: cost(s, size, links)))
    return {Case(setup, p, batch): time for setup, time in found.items()}


def prediction_rows(model: str, times: Times, links: Mapping[str, CostModel]) -> list[Row]:
    """Return rows of images per second, predicted for links by place, against p times those of one rank.

    For the links here, the rows are of what was measured on several ranks, against the prediction.
    """
    found, alone = [], _alone(times)
    measured_on = {case.p for case in times} - {1}
    for place, link in links.items():
        for p in ranks_of(alone.batch):
            if place == HERE and p not in measured_on:
                continue
            for case, time in predictions(model, times, p, link).items():
                where, rate = f"{model}/strong/{case.size}/{case.setup}/{place}", case.batch / time
                if place != HERE:
                    rates = {case.setup: rate, "linear": p * images_per_s(times, alone)}
                elif case in times:
                    rates = {case.setup: images_per_s(times, case), "predicted": rate}
                else:
                    continue
                found += rows_of(where, rates, "images/s")
    return found
