"""The all-reduce algorithm `auto`: for each size the one with the lowest fitted cost on these ranks.

The α–β–γ model says why an algorithm is fast, but is off by a quarter where ranks share cores and where the
MPI library switches between protocols. So each algorithm has a cost of its own, which goes through the
medians measured at powers of 2 and is linear between them in log–log coordinates: there, both a constant
latency and a constant bandwidth are straight lines.

The first time that a size is needed on some ranks, all algorithms take turns at the powers of 2 next to it.
The times are kept for this machine (cost_cache.py), so this happens once. Rank 0 decides, so all ranks agree.
Each communicator keeps what was decided. Costs are measured on a duplicate of the communicator: not watched,
not counted, but with the emulated links that it may have.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable
from datetime import datetime
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.comm import cost_cache, timing
from labkit.comm.algorithms import FIXED, Algorithm
from labkit.comm.emulation import EmulatedComm
from labkit.comm.running import Steps, complete
from labkit.comm.shared_memory import NAME as SHARED_MEMORY
from labkit.comm.shared_memory import shared_array
from labkit.comm.timing import Times
from labkit.units import MIB, approx_size, approx_time, format_size
from mpiwatch import waiting
from mpiwatch.errors import CollectiveError
from mpiwatch.wrapper import CommWrapper

LIBRARY = "mpi"
MARGIN = 0.04  # by how much an algorithm has to be faster than the library's own to be chosen
SMALLEST, LARGEST = 4, 64 * MIB  # the sizes between which costs are measured, in bytes
TREND_FROM, TREND_FACTOR = MIB, 2.0  # above this size, the order of the algorithms hardly changes
SECONDS = 1.5  # for the rounds at one size, unless FEWEST rounds take longer
FEWEST = 3
LONGEST_S = 15.0  # if FEWEST rounds would take longer at a size, a smaller one is measured instead


# What the last call used: an Allreduce takes some microseconds, so finding it again must take none.
NONE: tuple[MPI.Intracomm | None, int, Algorithm] = None, -1, FIXED[LIBRARY]
_last = NONE


class Choice(NamedTuple):
    """The algorithms for gradients of one size with their predicted times (s), the chosen one first."""

    nbytes: int
    ranked: list[tuple[str, float]]
    source: str  # where the costs come from

    @property
    def name(self) -> str:
        """Return the chosen algorithm."""
        return self.ranked[0][0]

    def __str__(self) -> str:
        if len(self.ranked) == 1:
            return f"auto: {self.name} ({self.source})"
        (name, seconds), (other, others_seconds) = self.ranked[:2]
        return (
            f"auto: {name} for {approx_size(self.nbytes)}, predicted {approx_time(seconds)}; "
            f"next {other}, {approx_time(others_seconds)} ({self.source})"
        )


def auto(comm: MPI.Intracomm, gradient: np.ndarray, factor: float, blocking: bool) -> Steps:
    """Sum by the algorithm with the lowest fitted cost for this size on these ranks."""
    known_comm, known_nbytes, algorithm = _last
    if comm is not known_comm or gradient.nbytes != known_nbytes:
        algorithm = FIXED[chosen(comm, gradient.nbytes)]
    return algorithm(comm, gradient, factor, blocking)


def chosen(comm: MPI.Intracomm, nbytes: int) -> str:
    """Return the algorithm for gradients of `nbytes` bytes, as decided at the first call. Collective."""
    global _last  # noqa: PLW0603
    decisions = _decisions(comm)
    if nbytes not in decisions:
        decisions[nbytes] = choose(comm, nbytes).name
    if type(comm) is MPI.Intracomm:
        _last = comm, nbytes, FIXED[decisions[nbytes]]
    return decisions[nbytes]


def chosen_array(comm: MPI.Intracomm, n: int, dtype: np.dtype) -> np.ndarray | None:
    """Return n zeros in shared memory if it is chosen for this size, otherwise None. Collective.

    If there is too little shared memory, decide for the next best algorithm.
    """
    global _last
    nbytes, array = n * np.dtype(dtype).itemsize, None
    name, *others = [name for name, _ in choose(comm, nbytes).ranked]
    if name == SHARED_MEMORY:
        try:
            array = shared_array(comm, n, dtype)
        except CollectiveError:
            name = others[0]
    _decisions(comm)[nbytes], _last = name, NONE
    return array


def choose(comm: MPI.Intracomm, nbytes: int) -> Choice:
    """Return the ranking of the algorithms for gradients of `nbytes` bytes on these ranks. Collective.

    Measure what is not known yet; that may take some seconds, and rank 0 prints its progress.
    """
    if comm.size == 1:
        return Choice(nbytes, [(LIBRARY, 0.0)], "a single rank sends nothing")
    if isinstance(comm, CommWrapper):
        comm._before_schedule("auto", None)  # on a watched communicator, a missing rank is reported
    plain, place = MPI.Intracomm(comm), cost_cache.place_of(comm)
    times, measured = plain.bcast(cost_cache.load(place) if plain.rank == 0 else None)
    if more := _measure(comm, times, nbytes):
        times, measured = times | more, _now()
        if plain.rank == 0 and (why_not := cost_cache.save(place, times, measured)):
            measured += f", {why_not}"
    decided: Choice = plain.bcast(rank(times, nbytes, f"measured {measured}") if plain.rank == 0 else None)
    return decided


def refit_costs(comm: MPI.Intracomm) -> None:
    """Forget all costs known for these ranks, so that they are measured anew when needed. Collective."""
    global _last  # noqa: PLW0603
    place = cost_cache.place_of(comm)
    _decisions(comm).clear()
    _last = NONE
    if comm.rank == 0:
        cost_cache.save(place, {}, "")
    MPI.Intracomm(comm).Barrier()


def rank(times: Times, nbytes: int, source: str) -> Choice:
    """Rank the algorithms by prediction; the library's own is first if none is faster by MARGIN."""
    predicted = predict(times, nbytes)
    ranked = sorted(predicted.items(), key=lambda entry: entry[1] * (1 - MARGIN * (entry[0] == LIBRARY)))
    return Choice(nbytes, ranked, source)


def predict(times: Times, nbytes: int) -> dict[str, float]:
    """Return the predicted time (s) of every algorithm that was measured at the sizes around `nbytes`.

    Above the largest measured size, times grow in proportion; below the smallest, they stay the same.
    """
    below = max((size for size in times if size <= nbytes), default=min(times))
    above = min((size for size in times if size >= nbytes), default=below)
    if below >= above:
        return {name: max(1.0, nbytes / below) * seconds for name, seconds in times[below].items()}
    part = math.log(nbytes / below) / math.log(above / below)
    return {
        name: times[below][name] ** (1 - part) * times[above][name] ** part
        for name in times[below]
        if name in times[above]
    }


def sizes_around(nbytes: int) -> list[int]:
    """Return the powers of 2 next to a size, or the size itself if it is one: where to measure for it."""
    size = min(max(nbytes, SMALLEST), LARGEST)
    below = 1 << (size.bit_length() - 1)
    return [below] if size == below else [below, 2 * below]


def worth_measuring(times: Times, size: int, names: Iterable[str]) -> list[str]:
    """Return the algorithms that can be the fastest at a size, judged by the next smaller measured size.

    Up to TREND_FROM bytes all of them can; above, those within TREND_FACTOR of the fastest one that sends
    messages. (Shared memory may be faster still, but there may be too little of it.)
    """
    smaller = [other for other in times if TREND_FROM <= other < size]
    if not smaller:
        return list(names)
    known = times[max(smaller)]
    most = TREND_FACTOR * min(seconds for name, seconds in known.items() if name != SHARED_MEMORY)
    return [name for name in names if known.get(name, math.inf) <= most]


def affordable(times: Times, size: int, seconds: float) -> int:
    """Return the size, or half of it, and so on, until one call of each algorithm takes at most `seconds`.

    No size is halved below TREND_FROM, and none if no time is known from there on.
    """
    while size > TREND_FROM and max(times, default=0) >= TREND_FROM and size not in times:
        predicted = predict(times, size)
        if sum(predicted[name] for name in worth_measuring(times, size, predicted)) <= seconds:
            break
        size //= 2
    return size


def _measure(comm: MPI.Intracomm, times: Times, nbytes: int) -> Times:
    """Return the median times (s) at sizes (bytes) that a choice for `nbytes` still needs. Collective."""
    wanted = sizes_around(nbytes)
    if max(wanted) > TREND_FROM:  # then it is worth knowing which algorithms need not be measured
        wanted = [TREND_FROM, *wanted]
    missing = sorted(set(wanted) - set(times))
    more: Times = {}
    if not missing:
        return more
    own: MPI.Intracomm = MPI.Intracomm(comm).Dup()
    candidates = {
        name: timing.Allreduce(partial(_sum, name), shared_array if name == SHARED_MEMORY else None)
        for name in FIXED
    }
    if isinstance(comm, EmulatedComm):
        own = EmulatedComm(own, comm.links)
    hosts = timing.count_hosts(own)
    if isinstance(comm, EmulatedComm) or hosts == own.size:
        del candidates[SHARED_MEMORY]  # no emulated link would delay it; or it would be a ring with detours
    report = timing.progress(own, "auto measures the all-reduce algorithms: ")
    calls = timing.calls_in_a_round(hosts) * (FEWEST + 1)  # the first round warms up
    for wanted_size in missing:
        known = times | more
        size = affordable(known, wanted_size, LONGEST_S / calls)
        if size not in known:
            names = worth_measuring(known, size, candidates)
            found = timing.one_pass(
                own,
                {name: candidates[name] for name in names},
                size,
                SECONDS,
                lambda text, size=size: report(f"{format_size(size)}, {text}"),  # type: ignore[misc]
                fewest=FEWEST,
            )
            more[size] = {name: statistics.median(taken) for name, taken in found.items()}
    own.Free()  # not after an error, which may be this rank's alone: this is collective
    return more


def _sum(name: str, comm: MPI.Intracomm, array: np.ndarray, weight: float) -> None:
    complete(FIXED[name](comm, array, weight, True))


def _now() -> str:
    """Return the date and time; on a busy machine also its load, because a refit may then choose better."""
    when, load, cores = f"{datetime.now():%Y-%m-%d %H:%M}", os.getloadavg()[0], os.cpu_count() or 1
    return f"{when} on a busy machine (load {load:.1f})" if load > 2 * cores else when


def _decisions(comm: MPI.Intracomm) -> dict[int, str]:
    """Return the algorithms decided on by size (bytes), which the communicator keeps.

    Wrappers share what the communicator inside keeps, except emulated links. After a hang has been reported,
    some ranks may have decided and others not, so they start afresh.
    """
    kept = comm.Get_attr(_keyval())
    if not isinstance(kept, dict):
        kept = {}
        comm.Set_attr(_keyval(), kept)
    known: dict[int, str] = kept.setdefault((getattr(comm, "emulated", ""), waiting.attempt()), {})
    return known


@cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval()
