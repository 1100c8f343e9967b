"""Time all-reduce algorithms on the ranks, as nccl-tests and the OSU micro-benchmarks do.

One repetition is a barrier, then one call; it takes as long as on its slowest rank. Rank 0 decides the number
of repetitions for all ranks: if each rank decided for itself, they could differ and hang. The result is the
median. The algorithms take turns in changing order, and all sizes are measured in several passes, so that a
slow spell of the machine affects all of them alike (see `labkit.bench.rows`).

Between machines, each timed call follows an untimed one: TCP connections remember how fast the previous
algorithm sent, and a training loop calls the same algorithm again and again.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.bench.collectives import ITEM, Times
from labkit.comm import CollectiveError, raise_together
from labkit.units import format_size

Sum = Callable[[MPI.Intracomm, np.ndarray], object]  # leaves the sum of all ranks' arrays in each of them
Report = Callable[[str], None]

PASSES = 3
MIN_ROUNDS, MAX_ROUNDS = 2, 100  # in a pass


class Allreduce(NamedTuple):
    """An all-reduce, and a function that makes its array, (n,) float32; by default all share one array.

    `array` raises CollectiveError if there is no memory for n entries; the algorithm is then left out at that
    size.
    """

    add: Sum
    array: Callable[[MPI.Intracomm, int], np.ndarray] | None = None


def measure(
    comm: MPI.Intracomm,
    algorithms: Mapping[str, Allreduce],
    sizes: Sequence[int],
    seconds: float,
    report: Report,
) -> Times:
    """Return the median time (s) of every algorithm at every size (bytes), the same on all ranks. Collective.

    A size takes about `seconds`, or longer for the least number of rounds. `report` is called with a line
    about the progress, often. Raise CollectiveError on every rank if an algorithm leaves a wrong sum.
    """
    taken: dict[int, dict[str, list[float]]] = {size: {} for size in sizes}
    for number in range(PASSES):
        for size in sizes:
            where = f"pass {number + 1} of {PASSES}, {format_size(size)}"
            times = _pass(
                comm,
                algorithms,
                size,
                seconds / PASSES,
                lambda text, where=where: report(f"{where}: {text}"),  # type: ignore[misc]
                first=number == 0,
            )
            for name, found in times.items():
                taken[size].setdefault(name, []).extend(found)
    return {
        size: {name: statistics.median(times) for name, times in by_name.items()}
        for size, by_name in taken.items()
    }


def print_progress(comm: MPI.Intracomm, text: str) -> None:
    """Write a line to rank 0's standard error."""
    if comm.rank == 0:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _pass(
    comm: MPI.Intracomm,
    algorithms: Mapping[str, Allreduce],
    size: int,
    seconds: float,
    report: Report,
    *,
    first: bool,
) -> dict[str, list[float]]:
    """Return the times of every algorithm in all rounds of one pass, on the slowest rank of each round."""
    n = size // ITEM
    common = np.empty(n, np.float32)
    ready: dict[str, tuple[Sum, np.ndarray]] = {}
    for name, (add, make) in algorithms.items():
        try:
            array = make(comm, n) if make else common
        except CollectiveError as error:
            print_progress(comm, f"{format_size(size)}: {name} is left out: {error}")
            continue
        if first:
            report(f"checking the sum of {name}")
            _check(comm, name, add, array)
        ready[name] = add, array
    for _, array in ready.values():
        array.fill(0)  # the sum stays 0, however often it is taken
    report("warming up")
    start = perf_counter()
    calls = 1 if len(set(comm.allgather(MPI.Get_processor_name()))) == 1 else 2
    _one_round(comm, ready, np.empty(len(ready)), calls, backwards=True)
    affordable = int(seconds / (perf_counter() - start))
    rounds = comm.bcast(min(max(affordable, MIN_ROUNDS), MAX_ROUNDS))
    times = np.empty((len(ready), rounds))
    for number in range(rounds):
        report(f"round {number + 1} of {rounds}")
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
    """Call every algorithm `calls` times; put the time of the last call into `times`, (algorithms,)."""
    turns = list(enumerate(ready.values()))
    for place, (add, array) in reversed(turns) if backwards else turns:
        for _ in range(calls):
            comm.Barrier()
            start = perf_counter()
            add(comm, array)
            times[place] = perf_counter() - start


def _check(comm: MPI.Intracomm, name: str, add: Sum, array: np.ndarray) -> None:
    """Call an algorithm once, on values that differ between ranks and between entries."""
    p, entries = comm.size, np.arange(array.size, dtype=np.float32) % 7
    np.add(entries, comm.rank, out=array)
    add(comm, array)
    wrong = np.flatnonzero(array != entries * p + p * (p - 1) // 2)
    fault = None
    if wrong.size:
        fault = f"{name} left a wrong sum of {array.size} values, the first at index {wrong[0]}"
    raise_together(comm, fault)
