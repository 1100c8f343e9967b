"""Timing collectives on the ranks, as the field does.

One repetition is a barrier, then one call; it takes as long as its slowest rank. How many there are, rank 0
decides for all: ranks that count for themselves could differ, and hang. What is told is the median. The ways
take turns, in changing order, so that they share the machine's moods (see `labkit.bench.rows`); all sizes are
gone through more than once, so that a mood does not meet one size alone.

Between machines a call that is not timed goes before: TCP's connections remember how fast the last way sent,
and a training loop calls the same one again and again.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.bench.collectives import ITEM, Times
from labkit.comm import CollectiveError, raise_together
from labkit.units import format_size

Sum = Callable[[MPI.Intracomm, np.ndarray], object]  # leaves the sum of all ranks' arrays in each of them
Tell = Callable[[str], None]


class Contender(NamedTuple):
    """A way to add up, and where it has its array, (n,) float32; None: where all others have it.

    A CollectiveError from `array` says that there is no room, and the way is left out at that size.
    """

    add: Sum
    array: Callable[[MPI.Intracomm, int], np.ndarray] | None = None


PASSES = 3
ROUNDS = 2, 100  # in a pass, at least and at most


def measure(
    comm: MPI.Intracomm, algorithms: Mapping[str, Contender], sizes: Sequence[int], seconds: float, tell: Tell
) -> Times:
    """Return the median time of every way at every size (bytes), the same on all ranks.

    `seconds` is how long one size may take, but for the least number of rounds. `tell` hears what happens
    now. Collective. A way that does not leave the sum of all ranks is a CollectiveError on every rank.
    """
    taken: dict[int, dict[str, list[float]]] = {size: {} for size in sizes}
    for number in range(PASSES):
        for size in sizes:
            said_so = partial(_with, tell, f"pass {number + 1} of {PASSES}, {format_size(size)}")
            for name, times in _at(
                comm, algorithms, size, seconds / PASSES, said_so, first=number == 0
            ).items():
                taken[size].setdefault(name, []).extend(times)
    return {
        size: {name: statistics.median(times) for name, times in by_way.items()}
        for size, by_way in taken.items()
    }


def _with(tell: Tell, where: str, what: str) -> None:
    tell(f"{where}: {what}")


def note(comm: MPI.Intracomm, text: str) -> None:
    """Write a line to rank 0's standard error."""
    if comm.rank == 0:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _at(
    comm: MPI.Intracomm,
    algorithms: Mapping[str, Contender],
    size: int,
    seconds: float,
    tell: Tell,
    *,
    first: bool,
) -> dict[str, list[float]]:
    """Return the time of every way in every round of one pass: that of the slowest rank."""
    n = size // ITEM
    common = np.empty(n, np.float32)
    ready: dict[str, tuple[Sum, np.ndarray]] = {}
    for name, (add, make) in algorithms.items():
        try:
            array = make(comm, n) if make else common
        except CollectiveError as error:
            note(comm, f"{format_size(size)}: without {name}: {error}")
            continue
        if first:
            tell(f"is the sum of {name} right?")
            _check(comm, name, add, array)
        ready[name] = add, array
    for _, array in ready.values():
        array.fill(0)  # whose sum is 0, however often
    tell("warming up")
    start = perf_counter()
    calls = 1 if len(set(comm.allgather(MPI.Get_processor_name()))) == 1 else 2
    _one_round(comm, ready, np.empty(len(ready)), calls, backwards=True)
    least, most = ROUNDS
    rounds = comm.bcast(min(max(int(seconds / (perf_counter() - start)), least), most))
    times = np.empty((len(ready), rounds))
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        _one_round(comm, ready, times[:, number], calls, backwards=bool(number % 2))
    comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return dict(zip(ready, times.tolist(), strict=True))


def _one_round(
    comm: MPI.Intracomm,
    ready: Mapping[str, tuple[Sum, np.ndarray]],
    times: np.ndarray,
    calls: int,
    *,
    backwards: bool,
) -> None:
    """Put this rank's time of the last of some calls of every way into `times`. Shape: (ways,)."""
    turns = list(enumerate(ready.values()))
    for place, (add, array) in reversed(turns) if backwards else turns:
        for _ in range(calls):
            comm.Barrier()
            start = perf_counter()
            add(comm, array)
            times[place] = perf_counter() - start


def _check(comm: MPI.Intracomm, name: str, add: Sum, array: np.ndarray) -> None:
    """Call a way once, on values that tell ranks and places apart."""
    p, places = comm.size, np.arange(array.size, dtype=np.float32) % 7
    np.add(places, comm.rank, out=array)
    add(comm, array)
    wrong = np.flatnonzero(array != places * p + p * (p - 1) // 2)
    fault = f"{name} left a wrong sum of {array.size} values, first at {wrong[0]}" if wrong.size else None
    raise_together(comm, fault)
