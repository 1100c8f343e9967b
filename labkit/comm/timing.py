"""Time all-reduce algorithms on the ranks, as nccl-tests and the OSU micro-benchmarks do.

One repetition is a barrier, then one call; it takes as long as on its slowest rank. Before the barrier each
rank writes its array, as a backward pass writes the gradient: otherwise an array that several algorithms use
would be in the processor's cache more often than another one. Rank 0 decides the number of repetitions for
all ranks: if each rank decided for itself, they could differ and hang. The result is the median.

The algorithms take turns in random order, because a call is faster after another call of the same algorithm,
and slower after one that filled the caches. All sizes are measured in several passes, so that a slow spell of
the machine affects all of them alike.

Between machines, each timed call follows an untimed one: TCP connections remember how fast the previous
algorithm sent, and a training loop calls the same algorithm again and again.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from time import monotonic, perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.units import format_size
from mpiwatch.layers import CollectiveError, raise_together

ITEM = np.dtype(np.float32).itemsize
Times = dict[int, dict[str, float]]  # bytes → algorithm → median time in seconds
# Leaves the sum of all ranks' arrays in each of them. The last argument is the weight of an averaging
# algorithm, always 1: without a function in between, the time is the algorithm's own.
Sum = Callable[[MPI.Intracomm, np.ndarray, float], object]
Report = Callable[[str], None]

PASSES = 3
MIN_ROUNDS, MAX_ROUNDS = 2, 100  # in a pass
PROGRESS_EVERY_S = 2.0


class Allreduce(NamedTuple):
    """An all-reduce, and perhaps a function that prepares it for arrays of n values, (n,) float32.

    That returns the function to call in place of `add`, and its array; if the array is None, it shares one
    with others. If it raises CollectiveError, because there is no memory for n values, the algorithm is left
    out at that size.
    """

    add: Sum
    prepare: Callable[[MPI.Intracomm, int], tuple[Sum, np.ndarray | None]] | None = None


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
    for number, size in product(range(PASSES), sizes):

        def say(text: str, where: str = f"pass {number + 1} of {PASSES}, {format_size(size)}") -> None:
            report(f"{where}: {text}")

        times = one_pass(comm, algorithms, size, seconds / PASSES, say, check=number == 0)
        for name, times_of_pass in times.items():
            taken[size].setdefault(name, []).extend(times_of_pass)
    return {
        size: {name: statistics.median(times) for name, times in by_name.items()}
        for size, by_name in taken.items()
    }


def print_progress(comm: MPI.Intracomm, text: str) -> None:
    """Write a line to rank 0's standard error."""
    if comm.rank == 0:
        print(text, file=sys.stderr, flush=True)


def progress(comm: MPI.Intracomm, before: str = "") -> Report:
    """Return a function that prints a line about the progress on rank 0, at most every two seconds."""
    last = monotonic()

    def report(text: str) -> None:
        nonlocal last
        if monotonic() - last >= PROGRESS_EVERY_S:
            print_progress(comm, f"{before}{text}")
            last = monotonic()

    return report


def one_pass(
    comm: MPI.Intracomm,
    algorithms: Mapping[str, Allreduce],
    size: int,
    seconds: float,
    report: Report,
    *,
    check: bool = False,
    fewest: int = MIN_ROUNDS,
) -> dict[str, list[float]]:
    """Return every algorithm's times (s) in all rounds of one pass, on the slowest rank of each. Collective.

    The pass takes about `seconds`, or longer for `fewest` rounds. With `check`, first compare each
    algorithm's sum with the right one.
    """
    n = size // ITEM
    common = np.empty(n, np.float32)
    ready: dict[str, tuple[Sum, np.ndarray]] = {}
    for name, (add, prepare) in algorithms.items():
        try:
            prepared, memory = prepare(comm, n) if prepare else (add, None)
        except CollectiveError as error:
            print_progress(comm, f"{format_size(size)}: {name} is left out: {error}")
            continue
        array = common if memory is None else memory
        if check:
            report(f"checking the sum of {name}")
            _check(comm, name, prepared, array)
        ready[name] = prepared, array
    calls = 1 if count_hosts(comm) == 1 else 2  # of each algorithm in a round; the last one is timed

    def one_round(number: int) -> list[float]:
        """Call every algorithm, in an order that the number decides, the same on all ranks."""
        report(f"round {number}")
        times = dict.fromkeys(ready, 0.0)
        for name in random.Random(number).sample(list(ready), len(ready)):
            add, array = ready[name]
            for _ in range(calls):
                array.fill(0)
                comm.Barrier()
                start = perf_counter()
                add(comm, array, 1.0)
                times[name] = perf_counter() - start
        return list(times.values())

    start = perf_counter()
    one_round(0)  # to warm up
    affordable = int(seconds / (perf_counter() - start))
    rounds = comm.bcast(min(max(affordable, fewest), MAX_ROUNDS))
    times = np.array([one_round(number) for number in range(1, rounds + 1)])
    comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return dict(zip(ready, times.T.tolist(), strict=True))


def least_seconds(comm: MPI.Intracomm, call: Callable[[], object], repeats: int) -> float:
    """Return the time (s) of the fastest of so many calls, each as long as on its slowest rank. Collective.

    A call before them, to warm up, does not count. Other programs can only make a call longer, so the fastest
    one tells most about the call itself.
    """
    times = np.empty(1 + repeats)
    for number in range(1 + repeats):
        comm.Barrier()
        start = perf_counter()
        call()
        times[number] = perf_counter() - start
    comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return float(times[1:].min())


def count_hosts(comm: MPI.Intracomm) -> int:
    """Return on how many hosts the ranks run. Collective."""
    return len(set(comm.allgather(MPI.Get_processor_name())))


def _check(comm: MPI.Intracomm, name: str, add: Sum, array: np.ndarray) -> None:
    """Call an algorithm once, on values that differ between ranks and between entries."""
    p, entries = comm.size, np.arange(array.size, dtype=np.float32) % 7
    np.add(entries, comm.rank, out=array)
    add(comm, array, 1.0)
    wrong = np.flatnonzero(array != entries * p + p * (p - 1) // 2)
    fault = None
    if wrong.size:
        fault = f"{name} left a wrong sum of {array.size} values, the first at index {wrong[0]}"
    raise_together(comm, fault)
