"""The all-reduce algorithm `auto`: for each size the one with the lowest fitted cost on these ranks.

The first time that a size is needed on some ranks, all algorithms take turns at the powers of 2 next to it.
The times are kept for this machine (kept.py), so this happens once. Rank 0 decides, so all ranks agree. Later
calls on the same communicator look the decision up.

Costs are measured on a duplicate of the communicator: not watched, not counted, but with the emulated links
that it may have. A watched communicator adds the same few microseconds to every collective.
"""

from __future__ import annotations

import os
import statistics
from datetime import datetime
from functools import cache

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.allreduce import FIXED, Algorithm
from labkit.comm.averaging.shared_memory import shared_array
from labkit.comm.emulation.communicator import EmulatedComm
from labkit.comm.tuning import costs, kept, timing
from labkit.comm.tuning.costs import LIBRARY, SHARED_MEMORY, TREND_FROM, Choice
from labkit.comm.tuning.timing import Allreduce, Times
from labkit.units import format_size
from mpiwatch import waiting
from mpiwatch.errors import CollectiveError
from mpiwatch.wrapper import CommWrapper

SECONDS = 1.5  # for the rounds at one size, unless FEWEST rounds take longer
FEWEST = 3
LONGEST_S = 15.0  # if FEWEST rounds would take longer at a size, a smaller one is measured instead

_chosen: dict[tuple[object, ...], Algorithm] = {}  # by communicator and bytes
_measured: dict[kept.Place, tuple[Times, str]] = {}  # by this process, on rank 0
# What the last call used: an Allreduce takes some microseconds, so finding it again must take none.
_last_comm: MPI.Intracomm | None = None
_last_nbytes, _last_algorithm = -1, FIXED[LIBRARY]
_last_is_library = True


def auto(comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
    """Average in place by the algorithm with the lowest fitted cost for this size on these ranks."""
    if comm is _last_comm and gradient.nbytes == _last_nbytes:
        if _last_is_library and weight == 1.0:
            comm.Allreduce(MPI.IN_PLACE, gradient)
        else:
            _last_algorithm(comm, gradient, weight)
    else:
        _algorithm(comm, gradient.nbytes)(comm, gradient, weight)


def array_for_auto(comm: MPI.Intracomm, n: int, dtype: np.dtype) -> np.ndarray | None:
    """Return n zeros in shared memory if it is chosen for this size, otherwise None. Collective.

    If there is too little shared memory, choose among the other algorithms.
    """
    choice, array = choose(comm, n * np.dtype(dtype).itemsize), None
    if choice.name == SHARED_MEMORY:
        try:
            array = shared_array(comm, n, dtype)
        except CollectiveError:
            choice = choice.without(SHARED_MEMORY)
    _remember(comm, choice)
    return array


def choose(comm: MPI.Intracomm, nbytes: int) -> Choice:
    """Return the ranking of the algorithms for gradients of `nbytes` bytes on these ranks. Collective.

    Measure what is not known yet; that may take some seconds, and rank 0 prints its progress.
    """
    if comm.size == 1:
        return Choice(nbytes, [(LIBRARY, 0.0)], "a single rank sends nothing")
    if isinstance(comm, CommWrapper):
        comm._before_schedule("auto", None)  # on a watched communicator, a missing rank is reported
    plain, place = MPI.Intracomm(comm), kept.place_of(comm)
    known = (_measured.get(place) or kept.load(place)) if plain.rank == 0 else None
    times, measured = plain.bcast(known)
    if more := _measure(comm, place, times, _missing(times, nbytes)):
        times, measured = times | more, _now()
        if plain.rank == 0:
            _measured[place] = times, measured
            measured += f", {why_not}" if (why_not := kept.save(place, times, measured)) else ""
    decided = costs.choose(times, nbytes, f"measured {measured}") if plain.rank == 0 else None
    choice: Choice = plain.bcast(decided)
    return choice


def refit_costs(comm: MPI.Intracomm) -> None:
    """Forget all costs known for these ranks, so that they are measured anew when needed. Collective."""
    global _last_comm  # noqa: PLW0603
    place = kept.place_of(comm)
    _chosen.clear()
    _last_comm = None
    if comm.rank == 0:
        _measured.pop(place, None)
        kept.forget(place)
    MPI.Intracomm(comm).Barrier()


def _algorithm(comm: MPI.Intracomm, nbytes: int) -> Algorithm:
    """Return the algorithm for this communicator and size; choose it first if this is new. Collective."""
    global _last_comm, _last_nbytes, _last_algorithm, _last_is_library  # noqa: PLW0603
    found = _chosen.get(_key(comm, nbytes)) or _remember(comm, choose(comm, nbytes))
    if type(comm) is MPI.Intracomm:
        _last_comm, _last_nbytes, _last_algorithm = comm, nbytes, found
        _last_is_library = found is FIXED[LIBRARY]
    return found


def _remember(comm: MPI.Intracomm, choice: Choice) -> Algorithm:
    global _last_comm  # noqa: PLW0603
    _last_comm = None
    comm.Set_attr(_attribute(), comm.handle)
    algorithm = _chosen[_key(comm, choice.nbytes)] = FIXED[choice.name]
    return algorithm


def _key(comm: MPI.Intracomm, nbytes: int) -> tuple[object, ...]:
    """Return the key of a decision; wrappers share the handle of the communicator inside.

    After a hang has been reported, some ranks may have decided and others not, so they start afresh.
    """
    if type(comm) is MPI.Intracomm:
        return comm.handle, nbytes
    return comm.handle, nbytes, getattr(comm, "emulated", ""), waiting.attempt()


@cache
def _attribute() -> int:
    """Return the key of an attribute that is deleted with its communicator: the handle may be used again."""

    def forget(comm: MPI.Comm, key: int, handle: int) -> None:
        global _last_comm  # noqa: PLW0603
        _last_comm = None
        for known in [known for known in _chosen if known[0] == handle]:
            del _chosen[known]

    return MPI.Comm.Create_keyval(delete_fn=forget)


def _missing(times: Times, nbytes: int) -> list[int]:
    """Return the sizes to measure before a choice for `nbytes`, ascending."""
    wanted = costs.sizes_around(nbytes)
    if max(wanted) > TREND_FROM:  # then it is worth knowing which algorithms need not be measured
        wanted = [TREND_FROM, *wanted]
    return sorted(set(wanted) - set(times))


def _measure(comm: MPI.Intracomm, place: kept.Place, times: Times, sizes: list[int]) -> Times:
    """Return the median times (s) at more sizes (bytes), the same on all ranks. Collective."""
    more: Times = {}
    if not sizes:
        return more
    own: MPI.Intracomm = MPI.Intracomm(comm).Dup()
    candidates = {
        name: Allreduce(algorithm, shared_array if name == SHARED_MEMORY else None)
        for name, algorithm in FIXED.items()
    }
    if isinstance(comm, EmulatedComm):
        own = EmulatedComm(own, comm.links)
    if isinstance(comm, EmulatedComm) or max(place.ranks_per_host) == 1:
        del candidates[SHARED_MEMORY]  # no emulated link would delay it; or it would be a ring with detours
    report = timing.progress(own, "auto measures the all-reduce algorithms: ")
    calls = timing.calls_in_a_round(own) * (FEWEST + 1)  # the first round warms up
    for wanted in sizes:
        known = times | more
        size = costs.affordable(known, wanted, LONGEST_S / calls)
        if size in known:
            continue
        found = timing.one_pass(
            own,
            {name: candidates[name] for name in costs.worth_measuring(known, size, candidates)},
            size,
            SECONDS,
            lambda text, size=size: report(f"{format_size(size)}, {text}"),  # type: ignore[misc]
            fewest=FEWEST,
        )
        more[size] = {name: statistics.median(taken) for name, taken in found.items()}
    own.Free()  # not after an error, which may be this rank's alone: this is collective
    return more


def _now() -> str:
    """Return the date and time; on a busy machine also its load, because a refit may then choose better."""
    when, load, cores = f"{datetime.now():%Y-%m-%d %H:%M}", os.getloadavg()[0], os.cpu_count() or 1
    return f"{when} on a busy machine (load {load:.1f})" if load > 2 * cores else when
