"""Collectives against one another, as the field measures them.

One repetition is a barrier, then one call; it takes as long as its slowest rank. How many there are, rank 0
decides for all: ranks that count for themselves could differ, and hang. What is told is the median. The ways
take turns, in changing order, so that they share the machine's moods (see `labkit.bench.rows`).

algbw is bytes / time. busbw multiplies it by 2(p-1)/p, the least that each link must carry of every byte in
an allreduce: so it can be held against what a link can do, for any p. Source: nccl-tests, PERFORMANCE.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np
from mpi4py import MPI

from labkit.bench.rows import Row, rows_of
from labkit.comm import raise_together

Sum = Callable[[MPI.Intracomm, np.ndarray], object]  # leaves the sum of all ranks' arrays in each of them
Times = dict[int, dict[str, float]]  # bytes → way → median time in seconds
Tell = Callable[[str], None]

SIZES = tuple(4**k for k in range(1, 14))  # 4 B … 64 MiB
ITEM = np.dtype(np.float32).itemsize
ROUNDS = 5, 300  # at least, at most
BASELINES = "mpi-allreduce", "gloo", "hand-written"


def measure(
    comm: MPI.Intracomm, ways: Mapping[str, Sum], sizes: Sequence[int], seconds: float, tell: Tell
) -> Times:
    """Return the median time of every way at every size (bytes), the same on all ranks.

    `seconds` is how long one size may take, but for the least number of rounds. Collective. A way that does
    not leave the sum of all ranks is a CollectiveError on every rank.
    """
    return {size: _at(comm, ways, size, seconds, tell) for size in sizes}


def _at(
    comm: MPI.Intracomm, ways: Mapping[str, Sum], size: int, seconds: float, tell: Tell
) -> dict[str, float]:
    array = np.empty(size // ITEM, np.float32)
    for name, add in ways.items():
        tell(f"{said(size)}: warming up {name}")
        _check(comm, name, add, array)
    array.fill(0)  # whose sum is 0, however often
    times = np.empty((len(ways), 1))
    _one_round(comm, ways, array, times[:, 0], False)
    least, most = ROUNDS
    rounds = comm.bcast(min(max(int(seconds / times.sum()), least), most))
    times = np.empty((len(ways), rounds))
    for number in range(rounds):
        tell(f"{said(size)}: round {number + 1} of {rounds}")
        _one_round(comm, ways, array, times[:, number], bool(number % 2))
    comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return dict(zip(ways, np.median(times, axis=1).tolist(), strict=True))


def _one_round(
    comm: MPI.Intracomm, ways: Mapping[str, Sum], array: np.ndarray, times: np.ndarray, backwards: bool
) -> None:
    """Call every way once, and put this rank's time of each into `times`. Shape: (ways,)."""
    turns = list(enumerate(ways.values()))
    for place, add in reversed(turns) if backwards else turns:
        comm.Barrier()
        start = perf_counter()
        add(comm, array)
        times[place] = perf_counter() - start


def _check(comm: MPI.Intracomm, name: str, add: Sum, array: np.ndarray) -> None:
    """Call a way once, on values that tell ranks and places apart."""
    p = comm.size
    array[...] = np.arange(array.size) % 7 + comm.rank
    add(comm, array)
    wrong = np.flatnonzero(array != np.arange(array.size) % 7 * p + p * (p - 1) // 2)
    fault = f"{name} left a wrong sum of {array.size} values, first at {wrong[0]}" if wrong.size else None
    raise_together(comm, fault)


def algbw(size: int, time: float) -> float:
    """Return bytes per second."""
    return size / time


def busbw(size: int, time: float, p: int) -> float:
    """Return the bytes per second that each rank's link must carry at least; 0 for one rank."""
    return size / time * 2 * (p - 1) / p


def wire_bound(size: int, p: int, bits_per_second: float) -> float:
    """Return the least time (s) of an allreduce over links of this rate."""
    return 2 * (p - 1) / p * size * 8 / bits_per_second


def rows(times: Times, p: int, place: str, rate: float | None = None) -> list[Row]:
    """Return every way against the baselines, in ms; with a link's `rate` (bit/s) against that, too.

    `place` says where: "p4", say. The hand-written ring is held against the ring alone.
    """
    found = []
    for size, medians in times.items():
        for name in medians:
            if name in BASELINES:
                continue
            against = {
                other: medians[other]
                for other in BASELINES
                if other in medians and (other != "hand-written" or name == "ring")
            }
            if rate and p > 1:
                against["wire-bound"] = wire_bound(size, p, rate)
            shown = {way: 1e3 * time for way, time in {name: medians[name], **against}.items()}
            found += rows_of(f"{name}/{said(size)}/{place}", shown, "ms")
    return found


def said(size: int) -> str:
    """Return a number of bytes as people write it: 64MiB."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % 2**power == 0:
            return f"{size >> power}{unit}"
    return f"{size}B"


def time_said(seconds: float) -> str:
    """Return a time with three digits and the unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{_three(seconds * factor)} {unit}"
    return f"{_three(seconds * 1e6)} µs"


def _three(value: float) -> str:
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def table(times: Times, p: int) -> str:
    """Return time, algbw and busbw of every way at every size as text in aligned columns."""
    width = max((len(name) for medians in times.values() for name in medians), default=3)
    lines = [f"{'size':>7}  {'way':{width}}  {'time':>9}  algbw GB/s  busbw GB/s"]
    for size, medians in times.items():
        lines += [
            f"{said(size):>7}  {name:{width}}  {time_said(time):>9}  {algbw(size, time) / 1e9:10.3f}  "
            f"{busbw(size, time, p) / 1e9:10.3f}"
            for name, time in sorted(medians.items(), key=lambda item: item[1])
        ]
    return "\n".join(lines)
