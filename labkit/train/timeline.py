"""The timeline of a run: what each rank did when, on one clock, as a trace that Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm.clock import offset
from labkit.comm.timing import count_hosts
from labkit.files import atomic_write
from labkit.train.callbacks import Callback
from labkit.train.steps import Step

MOST = 100_000  # steps that are kept, of each rank
TRACED = 500  # of these, how many have the times of layers and buckets, and are in the trace
WITHOUT_SPANS: dict[str, Any] = {"layers": (), "transfers": (), "gathers": ()}


class Timeline(Callback):
    """Record a run's steps, the first MOST of them: give it to `train` as a callback, then `gather` it.

    The first TRACED steps keep the times of their layers and buckets, too. `total_s` is the time (s) since
    this object was made. Making, saving and gathering a timeline are collective: all compare the ranks'
    clocks, which drift apart. In the timeline of a resumed run, the steps after the break follow at once on
    those before it, which have no times of layers and buckets.
    """

    def __init__(self, comm: MPI.Intracomm, clock: Callable[[], float] = perf_counter) -> None:
        self._comm, self._clock = comm, clock
        self.steps: list[Step] = []  # since the ranks compared their clocks
        self._earlier: list[Step] = []  # on the one clock of all ranks
        self._before_s = 0.0  # the total time before a break
        self._ahead = 0.0  # how far the clock before a break is ahead of rank 0's
        self._same_clock = clock is perf_counter and count_hosts(comm) == 1
        self._began = self._compare()

    @property
    def total_s(self) -> float:
        return self._before_s + self._clock() - self._began[0]

    def after_step(self, step: Step) -> None:
        if step.number <= MOST:
            self.steps.append(step if step.number <= TRACED else replace(step, **WITHOUT_SPANS))

    def gather(self) -> list[Step]:
        """Return the steps of all ranks, by step and rank, on rank 0; an empty list elsewhere. Collective.

        Their times are on the clock of rank 0 and count from the first `begin`.
        """
        steps = [step for steps in self._comm.gather(self._own()) or [] for step in steps]
        zero = min((step.begin for step in steps), default=0.0)
        steps.sort(key=lambda step: (step.number, step.rank))
        return [step.shifted(lambda time: time - zero) for step in steps]

    def state(self) -> dict[str, np.ndarray]:
        """Return this rank's steps so far, an array for each field."""
        names = [each.name for each in fields(Step) if each.name not in WITHOUT_SPANS]
        steps = self._own()
        columns = {name: np.array([getattr(step, name) for step in steps]) for name in names}
        return {**columns, "total_s": np.array(self.total_s)}

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on after these steps."""
        columns = {name: array.tolist() for name, array in state.items()}
        self._before_s = columns.pop("total_s")
        self._earlier = [
            Step(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)
        ]
        end = self._comm.allreduce(max((step.done for step in self._earlier), default=0.0), MPI.MAX)
        self._ahead = end - self._comm.bcast(self._clock())

    def _own(self) -> list[Step]:
        """Return this rank's steps on one clock: that of all ranks, and of the steps before a break."""
        (began, first), (now, last) = self._began, self._compare()
        drift = (last - first) / (now - began)
        self._earlier += [
            step.shifted(lambda time: time + (first + drift * (time - began) + self._ahead))
            for step in self.steps
        ]
        self.steps.clear()
        return self._earlier

    def _compare(self) -> tuple[float, float]:
        """Return the time on this rank's clock, and by how much rank 0's clock is ahead of it."""
        ahead = 0.0 if self._same_clock else offset(self._comm, self._clock)
        return self._clock(), ahead


def save_trace(path: Path, steps: Sequence[Step], about: Mapping[str, Any]) -> None:
    """Write the steps of all ranks (`Timeline.gather`) as a trace that Perfetto opens (ui.perfetto.dev).

    The file has the Trace Event Format: the first TRACED steps, with a row for each rank and one for its
    buckets, and `about` as metadata. Times are in µs. Call this on one rank.
    """
    ranks = sorted({step.rank for step in steps})
    rows = {rank + 1: (2 * rank, f"rank {rank}") for rank in ranks}  # some viewers hide thread 0
    if any(step.transfers for step in steps):
        rows |= {rank + 1 + len(ranks): (2 * rank + 1, f"rank {rank}, buckets") for rank in ranks}
    events = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "labkit train"}}]
    for row, (position, name) in rows.items():
        common = {"ph": "M", "pid": 1, "tid": row}
        events += [
            {**common, "name": "thread_name", "args": {"name": name}},
            {**common, "name": "thread_sort_index", "args": {"sort_index": position}},
        ]
    last = dict.fromkeys(ranks, 0.0)
    for step in (step for step in steps if step.number <= TRACED):
        spans = [
            (step.rank + 1, name, name, begin, end)
            for name, begin, end in [("idle", last[step.rank], step.begin), *step.spans()]
        ]
        spans += [
            (step.rank + 1 + len(ranks), f"bucket {each.bucket + 1}", "bucket", each.begin, each.end)
            for each in step.transfers
        ]
        for row, name, category, begin, end in spans:
            event = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": row}
            event |= {"ts": round(1e6 * begin, 3), "dur": round(1e6 * max(0.0, end - begin), 3)}
            events.append({**event, "args": {"epoch": step.epoch, "step": step.number}})
        last[step.rank] = step.done
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}
    with atomic_write(path) as out:
        out.write(json.dumps(content).encode())
