"""The timeline of a run: what each rank did when, on one clock, as a trace that Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.comm.clock import offset, one_machine
from labkit.files import atomic_write
from labkit.train.callbacks import Callback, Iteration
from labkit.train.gradients import Overlap, Transfer

MOST_STEPS = 500


class Step(NamedTuple):
    """The times (s, on the clock of rank 0) that bound the parts of one rank's step.

    From `begin` to `ready` the rank computes its gradient, until `start` it waits for the last rank to be
    ready, until `end` the ranks average their gradients, and until `done` it updates its parameters. It is
    idle between `done` and the next `begin`: this includes the bookkeeping between epochs. With buckets,
    `overlap` has the times of the layers' backward passes and of the buckets' transfers.
    """

    def shifted(self, clock: Callable[[float], float]) -> Step:
        """Return the step with each time t replaced by clock(t)."""
        begin, ready, start, end, done = map(clock, self[3:8])
        return Step(*self[:3], begin, ready, start, end, done, self.overlap.shifted(clock))

    epoch: int
    step: int
    rank: int
    begin: float
    ready: float
    start: float
    end: float
    done: float
    overlap: Overlap = Overlap()

    def spans(self) -> list[tuple[str, float, float]]:
        """Return what the rank did, with the begin and end (s) of each part."""
        return [
            ("compute", self.begin, self.ready),
            ("wait", self.ready, self.start),
            ("transfer", self.start, self.end),
            ("compute", self.end, self.done),
        ]


@dataclass
class Timeline(Callback):
    """Record the times of a run's first `most` steps: give it to `train` as a callback, then `gather` it.

    Making, saving and gathering a timeline are collective: all compare the ranks' clocks, which drift apart.
    In the timeline of a resumed run, the steps after the break follow at once on those before it.
    """

    comm: MPI.Intracomm
    most: int = MOST_STEPS
    clock: Callable[[], float] = perf_counter
    steps: list[Step] = field(default_factory=list, init=False)
    seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._before: list[Step] = []  # the steps before a break, on one clock
        self._ahead = 0.0  # how far that clock is ahead of rank 0's
        self._one_clock = self.clock is perf_counter and one_machine(self.comm)
        self._began = self._compare()

    def after_step(self, iteration: Iteration) -> None:
        """Record the times of one step, on this rank's clock."""
        self.seen += 1
        if self.seen <= self.most:
            times = iteration.begin, iteration.ready, iteration.start, iteration.end, iteration.done
            step = Step(iteration.epoch, iteration.number, self.comm.rank, *times, iteration.overlap)
            self.steps.append(step)

    def gather(self) -> list[Step]:
        """Return the steps of all ranks, by step and rank, on rank 0; an empty list elsewhere. Collective.

        Their times are on the clock of rank 0 and count from the first `begin`.
        """
        steps = sorted(
            (step for steps in self.comm.gather(self._on_one_clock()) or [] for step in steps),
            key=lambda step: (step.step, step.rank),
        )
        zero = min((step.begin for step in steps), default=0.0)
        return [step.shifted(lambda time: time - zero) for step in steps]

    def state(self) -> dict[str, np.ndarray]:
        """Return this rank's steps so far, as JSON."""
        return {"steps": np.frombuffer(json.dumps(self._on_one_clock()).encode(), np.uint8)}

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on after these steps."""
        for *when, (layers, transfers) in json.loads(state["steps"].tobytes()):
            overlap = Overlap(tuple(map(tuple, layers)), tuple(Transfer(*each) for each in transfers))
            self._before.append(Step._make([*when, overlap]))
        self.seen = len(self._before)
        end = self.comm.allreduce(max((step.done for step in self._before), default=0.0), MPI.MAX)
        self._ahead = end - self.comm.bcast(self.clock())

    def _on_one_clock(self) -> list[Step]:
        """Return this rank's steps, before a break and since, on one clock of all ranks. Collective."""
        now = self._compare()
        since = [self._on_clock_of_rank_0(step, now) for step in self.steps]
        return self._before + [step.shifted(lambda time: time + self._ahead) for step in since]

    def _compare(self) -> tuple[float, float]:
        """Return the time on this rank's clock, and by how much rank 0's clock is ahead of it."""
        ahead = 0.0 if self._one_clock else offset(self.comm, self.clock)
        return self.clock(), ahead

    def _on_clock_of_rank_0(self, step: Step, now: tuple[float, float]) -> Step:
        when, ahead = zip(self._began, now, strict=True)
        return step.shifted(lambda time: time + float(np.interp(time, when, ahead)))


def trace(steps: Sequence[Step], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps in the Trace Event Format, with a row for each rank and `about` as its metadata.

    A rank's buckets are in a second row. Times are in µs. Perfetto (ui.perfetto.dev) and chrome://tracing
    open it.
    """
    events = [_metadata("process_name", 1, name="labkit train")]
    ranks = sorted({step.rank for step in steps})
    rows = {rank: f"rank {rank}" for rank in ranks}
    if any(step.overlap.transfers for step in steps):
        rows |= {rank + len(ranks): f"rank {rank}, buckets" for rank in ranks}
    for position, row in enumerate(sorted(rows, key=lambda row: (row % len(ranks), row))):
        events += [
            _metadata("thread_name", _row(row), name=rows[row]),
            _metadata("thread_sort_index", _row(row), sort_index=position),
        ]
    last = dict.fromkeys(ranks, 0.0)
    for step in steps:
        own, below = _row(step.rank), _row(step.rank + len(ranks))
        spans = [(own, *span) for span in [("idle", last[step.rank], step.begin), *step.spans()]]
        spans += [
            (below, f"bucket {each.bucket + 1}", each.begin, each.end) for each in step.overlap.transfers
        ]
        for row, name, begin, end in spans:
            category = name if row == own else "bucket"
            event = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": row}
            event |= {"ts": round(1e6 * begin, 3), "dur": round(1e6 * max(0.0, end - begin), 3)}
            events.append({**event, "args": {"epoch": step.epoch, "step": step.step}})
        last[step.rank] = step.done
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}


def save_trace(path: Path, steps: Sequence[Step], about: Mapping[str, Any]) -> None:
    """Write the trace to a JSON file; call it on one rank, with the steps of all (`Timeline.gather`)."""
    with atomic_write(path) as out:
        out.write(json.dumps(trace(steps, about)).encode())


def _row(rank: int) -> int:
    return rank + 1  # some viewers take thread 0 for the idle thread of the system


def _metadata(what: str, row: int, **values: object) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": row, "args": values}
