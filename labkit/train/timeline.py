"""The timeline of a run: what each rank did when, on one clock, as a trace that Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm.clock import offset, one_machine
from labkit.files import atomic_write
from labkit.train.callbacks import Callback
from labkit.train.steps import BucketTimes, Step

MOST = 100_000  # steps that are kept, of each rank
TRACED = 500  # of these, how many have the times of layers and buckets, and are in the trace

TIMES = "begin", "ready", "start", "end", "done"  # of a step
OVERLAP = "layers", "transfers", "gathers"  # what a checkpoint keeps of the first TRACED steps alone


@dataclass
class Timeline(Callback):
    """Record a run's steps, the first `most` of them: give it to `train` as a callback, then `gather` it.

    The first TRACED steps keep the times of their layers and buckets, too. `total_s` is the time (s) since
    this object was made. Making, saving and gathering a timeline are collective: all compare the ranks'
    clocks, which drift apart. In the timeline of a resumed run, the steps after the break follow at once on
    those before it.
    """

    comm: MPI.Intracomm
    most: int = MOST
    clock: Callable[[], float] = perf_counter
    steps: list[Step] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._before: list[Step] = []  # the steps before a break, on one clock
        self._before_s = 0.0  # the total time before a break
        self._ahead = 0.0  # how far the clock before a break is ahead of rank 0's
        self._same_clock = self.clock is perf_counter and one_machine(self.comm)
        self._began = self._compare()

    @property
    def recorded(self) -> list[Step]:
        """Return the steps of this rank; the times of those before a break are on another clock."""
        return self._before + self.steps

    @property
    def total_s(self) -> float:
        return self._before_s + self.clock() - self._began[0]

    def after_step(self, step: Step) -> None:
        if step.number <= self.most:
            traced = step.number <= TRACED
            self.steps.append(step if traced else replace(step, layers=(), transfers=(), gathers=()))

    def gather(self) -> list[Step]:
        """Return the steps of all ranks, by step and rank, on rank 0; an empty list elsewhere. Collective.

        Their times are on the clock of rank 0 and count from the first `begin`.
        """
        clock = self._one_clock()
        own = self._before + [step.shifted(clock) for step in self.steps]
        steps = [step for steps in self.comm.gather(own) or [] for step in steps]
        zero = min((step.begin for step in steps), default=0.0)
        steps.sort(key=lambda step: (step.number, step.rank))
        return [step.shifted(lambda time: time - zero) for step in steps]

    def state(self) -> dict[str, np.ndarray]:
        """Return this rank's steps so far, an array for each field, and what OVERLAP has as JSON."""
        clock, before = self._one_clock(), len(self._before)
        names = [each.name for each in fields(Step) if each.name not in OVERLAP]
        columns = {name: np.array([getattr(step, name) for step in self.recorded]) for name in names}
        for name in TIMES:
            columns[name][before:] = clock(columns[name][before:])
        traced = [*self._before, *(step.shifted(clock) for step in self.steps[:TRACED])][:TRACED]
        overlaps = json.dumps([[getattr(step, name) for name in OVERLAP] for step in traced])
        return {
            **columns,
            "overlaps": np.frombuffer(overlaps.encode(), np.uint8),
            "total_s": np.array(self.total_s),
        }

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on after these steps."""
        columns = {name: array.tolist() for name, array in state.items()}
        overlaps, self._before_s = json.loads(bytes(columns.pop("overlaps"))), columns.pop("total_s")
        self._before = [
            Step(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)
        ]
        for step, (layers, transfers, gathers) in zip(self._before, overlaps, strict=False):
            step.layers = tuple((start, end) for start, end in layers)
            step.transfers = tuple(BucketTimes(*each) for each in transfers)
            step.gathers = tuple((begin, end) for begin, end in gathers)
        end = self.comm.allreduce(max((step.done for step in self._before), default=0.0), MPI.MAX)
        self._ahead = end - self.comm.bcast(self.clock())

    def _one_clock(self) -> Callable[[Any], Any]:
        """Return a function of a time, or an array of times, on this rank's clock since the break, if any.

        It returns them on the one clock of all ranks and of the steps before the break. Collective.
        """
        (began, first), (now, last) = self._began, self._compare()
        drift = (last - first) / (now - began)
        return lambda time: time + (first + drift * (time - began) + self._ahead)

    def _compare(self) -> tuple[float, float]:
        """Return the time on this rank's clock, and by how much rank 0's clock is ahead of it."""
        ahead = 0.0 if self._same_clock else offset(self.comm, self.clock)
        return self.clock(), ahead


def trace(steps: Sequence[Step], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps in the Trace Event Format, with a row for each rank and `about` as its metadata.

    The steps are the first TRACED ones. A rank's buckets are in a second row. Times are in µs. Perfetto
    (ui.perfetto.dev) and chrome://tracing open it.
    """
    events = [_metadata("process_name", 1, name="labkit train")]
    ranks = sorted({step.rank for step in steps})
    rows = {rank: f"rank {rank}" for rank in ranks}
    if any(step.transfers for step in steps):
        rows |= {rank + len(ranks): f"rank {rank}, buckets" for rank in ranks}
    for position, row in enumerate(sorted(rows, key=lambda row: (row % len(ranks), row))):
        events += [
            _metadata("thread_name", _row(row), name=rows[row]),
            _metadata("thread_sort_index", _row(row), sort_index=position),
        ]
    last = dict.fromkeys(ranks, 0.0)
    for step in (step for step in steps if step.number <= TRACED):
        own, below = _row(step.rank), _row(step.rank + len(ranks))
        spans = [(own, *span) for span in [("idle", last[step.rank], step.begin), *step.spans()]]
        spans += [(below, f"bucket {each.bucket + 1}", each.begin, each.end) for each in step.transfers]
        for row, name, begin, end in spans:
            category = name if row == own else "bucket"
            event = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": row}
            event |= {"ts": round(1e6 * begin, 3), "dur": round(1e6 * max(0.0, end - begin), 3)}
            events.append({**event, "args": {"epoch": step.epoch, "step": step.number}})
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
