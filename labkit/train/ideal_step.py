"""An ideal step of a sharded stage of notebook 07b: what its own code exposes, and whether blanks are right.

A layer's forward pass takes one unit of time and its backward pass two; a reduce-scatter or a gather takes
one, and the link carries one after the other. Nothing else takes time. No message is sent: a clock is moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from labkit.train.stages import LAYERS, WIDTH, PlainTraining

REDUCE_SCATTER, GATHER = "reduce-scatter", "gather"


class Transfer:
    """A collective on the ideal link, as a request: the link has carried it at the time `end`."""

    def __init__(self, link: IdealLink, kinds: tuple[str, ...]) -> None:
        self.link, self.kinds = link, kinds
        self.end = link.carry(kinds)

    def Test(self) -> bool:
        """Return whether the link has carried it."""
        is_complete = self.link.now >= self.end
        if is_complete:
            self.link.under_way.discard(self)
        return is_complete

    def Wait(self) -> None:
        """Move the clock to its end."""
        self.link.wait_until(self.end)
        self.link.under_way.discard(self)


class IdealLink:
    """Stands in for a stage's communicator; `now` is the time, `exposed` counts what the rank waited for."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.now = 0.0
        self.carried = list[tuple[str, float, float]]()  # the kind, the beginning and the end of each
        self.exposed = {REDUCE_SCATTER: 0.0, GATHER: 0.0}
        self.under_way: set[Transfer] = set()
        self.gathers = self.most_gathers = 0  # started in all; under way at a time

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"an ideal step knows Iallreduce, Ireduce_scatter and Iallgatherv, as stages use them, not {name}"
        )

    def carry(self, kinds: Iterable[str]) -> float:
        """Carry reduce-scatters and gathers after all that the link has been given before; return the end."""
        end = self.now
        for kind in kinds:
            begin = max([self.now, *(end for _, _, end in self.carried[-1:])])
            end = begin + 1
            self.carried.append((kind, begin, end))
        return end

    def wait_until(self, time: float) -> None:
        """Move the clock to a time, if it is later; what the link carries until then is exposed."""
        for kind, begin, end in self.carried:
            self.exposed[kind] += max(0.0, min(end, time) - max(begin, self.now))
        self.now = max(self.now, time)

    def _start(self, *kinds: str) -> Transfer:
        transfer = Transfer(self, kinds)
        self.under_way.add(transfer)
        if kinds == (GATHER,):
            self.gathers += 1
            self.most_gathers = max(
                self.most_gathers, sum(each.kinds == (GATHER,) for each in self.under_way)
            )
        return transfer

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> Transfer:
        return self._start(REDUCE_SCATTER, GATHER)

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = MPI.SUM
    ) -> Transfer:
        recvbuf[...] = 0
        return self._start(REDUCE_SCATTER)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Transfer:
        if sendbuf is not MPI.IN_PLACE:
            recvbuf[0][...] = 0
        return self._start(GATHER)


def ideal_step(stage: type[PlainTraining], comm: MPI.Intracomm) -> IdealLink:
    """Run a step of a stage on an ideal link; return the link."""
    link = IdealLink(comm.rank, comm.size)

    class OnTheClock(stage):  # type: ignore[valid-type, misc]
        def compute(self, seconds: float) -> None:
            link.now += seconds

    OnTheClock(link, 1.0).step(np.zeros((1, WIDTH), np.float32), np.zeros(1, int))
    return link


def about_blanks(
    exposed: Mapping[str, tuple[int, int] | None],
    kinds: Mapping[str, type[PlainTraining]],
    comm: MPI.Intracomm,
) -> list[str]:
    """Return a line about each blank of notebook 07b: the entries of EXPOSED, and `Overlapped.update`."""
    lines = [
        f'EXPOSED["{name}"]: {_about_entry(entry, kinds[name], comm)}' for name, entry in exposed.items()
    ]
    faults = [*_faults_of_update(ideal_step(kinds["overlapped"], comm))]
    return [*lines, f"Overlapped.update: {'; '.join(faults) or 'correct'}"]


def _about_entry(entry: Any, stage: type[PlainTraining], comm: MPI.Intracomm) -> str:
    if entry is None:
        return "not filled in yet"
    if not isinstance(entry, tuple) or len(entry) != 2:
        return f"expected two numbers, (reduce-scatters, gathers), got {entry!r}"
    counted = ideal_step(stage, comm).exposed
    wrong = [
        f"{kind}s" for number, (kind, right) in zip(entry, counted.items(), strict=True) if number != right
    ]
    if not wrong:
        return f"{entry} is correct"
    return (
        f"{entry} is wrong in the number of {' and of '.join(wrong)}. For each request, look for its Wait: "
        "what does the rank compute between the start and the Wait, and is that long enough?"
    )


def _faults_of_update(link: IdealLink) -> Iterator[str]:
    if link.gathers == LAYERS and link.most_gathers == 1:
        yield "not written yet: each gather ends before the next one begins"
        return
    if link.gathers != LAYERS:
        yield f"expected one gather for each of the {LAYERS} layers, got {link.gathers}"
    elif link.most_gathers < LAYERS:
        yield f"at most {link.most_gathers} gathers are under way at a time: start all before the first Wait"
    if link.under_way:
        yield "a gather is still under way at the end: wait for all"
