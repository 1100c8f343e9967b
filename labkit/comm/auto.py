"""The all-reduce algorithm `auto`: for each size the fastest one, as measured on these ranks.

The α–β–γ model says why an algorithm is fast, but is off by a quarter where ranks share cores and where the
MPI library switches between protocols. So `auto` measures. The first time that a size is needed on some
ranks, all algorithms take turns at the nearest power of 2; where a call takes long, only those that are close
to the fastest at ALL_UP_TO. The times are kept in a file for each place where ranks run, so this happens
once. Rank 0 decides, so all ranks agree. Each communicator keeps what was decided.
Costs are measured on a duplicate of the communicator: not watched, not counted, but with the emulated links
that it may have.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from platformdirs import user_cache_path

import labkit
from labkit.comm import timing
from labkit.comm.algorithms import FIXED, SLOWER
from labkit.comm.emulation import EmulatedComm
from labkit.comm.running import complete
from labkit.comm.shared_memory import NAME as SHARED_MEMORY
from labkit.comm.shared_memory import shared_array
from labkit.comm.timing import Times, count_hosts
from labkit.files import atomic_write
from labkit.hosts import HostsError, running
from labkit.hosts.namespaces import TOKEN
from labkit.units import MIB, approx_size, approx_time, format_bandwidth, format_size
from mpiwatch import layers
from mpiwatch.layers import CollectiveError, CommWrapper

LIBRARY = "mpi"
MARGIN = 0.04  # by how much an algorithm has to be faster than the library's own to be chosen
# The sizes (bytes) between which times are measured. Above, the order of the algorithms hardly changes. It
# does change when messages no longer fit in the buffers of a TCP connection, which are some MiB large.
SMALLEST, LARGEST = 4, 16 * MIB
SECONDS = 1.5  # for the rounds at one size, unless FEWEST rounds take longer
FEWEST = 3
# Larger sizes get LONG_SECONDS, at least one round, and only the algorithms that take at most CLOSE times as
# long as the fastest one at this size.
ALL_UP_TO = MIB
LONG_SECONDS = 5.0
CLOSE = 1.5
FILE = "LABKIT_COSTS"  # environment variable with the path of another file than that in the user's cache

_known: dict[str, tuple[Times, str]] = {}  # by place: the costs that this process has read or measured


class Choice(NamedTuple):
    """The algorithms for gradients of `nbytes` bytes, with times (s) at `size`; the chosen one first."""

    nbytes: int
    size: int  # the power of 2 (bytes) at which they were measured
    ranked: list[tuple[str, float]]
    source: str  # where the times come from

    @property
    def name(self) -> str:
        """Return the chosen algorithm."""
        return self.ranked[0][0]

    def __str__(self) -> str:
        if len(self.ranked) == 1:
            return f"auto: {self.name} ({self.source})"
        (name, seconds), (other, others_seconds) = self.ranked[:2]
        at_size = f"{approx_time(seconds)} at {approx_size(self.size)}"
        next_best = f"next {other}, {approx_time(others_seconds)}"
        return f"auto: {name} for {approx_size(self.nbytes)}, {at_size}; {next_best} ({self.source})"


def chosen(comm: MPI.Intracomm, nbytes: int) -> str:
    """Return the algorithm for gradients of `nbytes` bytes, as decided at the first call. Collective."""
    decisions = _decisions(comm)
    if nbytes not in decisions:
        decisions[nbytes] = choose(comm, nbytes).name
    return decisions[nbytes]


def chosen_array(comm: MPI.Intracomm, n: int, dtype: type | np.dtype) -> np.ndarray | None:
    """Return n zeros in shared memory if it is chosen for this size, otherwise None. Collective.

    If there is too little shared memory, decide for the next best algorithm.
    """
    nbytes = n * np.dtype(dtype).itemsize
    ranked, array = choose(comm, nbytes).ranked, None
    if ranked[0][0] == SHARED_MEMORY:
        try:
            array = shared_array(comm, n, dtype)
        except CollectiveError:
            del ranked[0]
    _decisions(comm)[nbytes] = ranked[0][0]
    return array


def choose(comm: MPI.Intracomm, nbytes: int) -> Choice:
    """Return the ranking of the algorithms for gradients of `nbytes` bytes on these ranks. Collective.

    Measure what is not known yet; that may take some seconds, and rank 0 prints its progress.
    """
    size = size_near(nbytes)
    if comm.size == 1:
        return Choice(nbytes, size, [(LIBRARY, 0.0)], "a single rank sends nothing")
    if isinstance(comm, CommWrapper):
        comm._before_schedule("auto", None)  # on a watched communicator, a missing rank is reported
    plain, place = MPI.Intracomm(comm), place_of(comm)
    times, measured = plain.bcast(load(place) if plain.rank == 0 else None)
    for needed in sorted({min(size, ALL_UP_TO), size} - times.keys()):
        names = list(FIXED)
        if needed > ALL_UP_TO:
            limit = CLOSE * min(times[ALL_UP_TO].values())
            names = [name for name, seconds in times[ALL_UP_TO].items() if seconds <= limit]
        times = {**times, needed: _measure(comm, needed, names)}
        measured = f"{datetime.now():%Y-%m-%d %H:%M}"
        if (load_now := os.getloadavg()[0]) > 2 * (os.cpu_count() or 1):  # a refit may choose better
            measured += f" on a busy machine (load {load_now:.1f})"
        if plain.rank == 0:
            save(place, times, measured)
    return plain.bcast(Choice(nbytes, size, rank(times[size]), f"measured {measured}"))


def refit_costs(comm: MPI.Intracomm) -> None:
    """Forget all costs known for these ranks, so that they are measured anew when needed. Collective."""
    place = place_of(comm)
    _decisions(comm).clear()
    if comm.rank == 0:
        save(place, {}, "")
    MPI.Intracomm(comm).Barrier()


def rank(times: Mapping[str, float]) -> list[tuple[str, float]]:
    """Rank the algorithms by their times; the library's own is first if none is faster by MARGIN."""
    return sorted(times.items(), key=lambda entry: entry[1] * (1 - MARGIN * (entry[0] == LIBRARY)))


def size_near(nbytes: int) -> int:
    """Return the power of 2 next to a size, on a logarithmic scale: where to measure for it."""
    return 1 << round(math.log2(min(max(nbytes, SMALLEST), LARGEST)))


def _measure(comm: MPI.Intracomm, size: int, names: list[str]) -> dict[str, float]:
    """Return the median times (s) of these algorithms at a size (bytes), if `auto` uses them. Collective."""
    own: MPI.Intracomm = MPI.Intracomm(comm).Dup()
    left_out = set(SLOWER)
    if isinstance(comm, EmulatedComm) or count_hosts(own) == own.size:
        left_out.add(SHARED_MEMORY)  # no emulated link would delay it; or it would be a ring with detours
    if isinstance(comm, EmulatedComm):
        own = EmulatedComm(own, comm.links)
    candidates = {
        name: timing.Allreduce(partial(_sum, name), shared_array if name == SHARED_MEMORY else None)
        for name in names
        if name not in left_out
    }
    report = timing.progress(own, f"auto measures the all-reduce algorithms: {format_size(size)}, ")
    seconds, fewest = (SECONDS, FEWEST) if size <= ALL_UP_TO else (LONG_SECONDS, 1)
    found = timing.one_pass(own, candidates, size, seconds, report, fewest=fewest)
    own.Free()  # not after an error, which may be this rank's alone: this is collective
    return {name: statistics.median(taken) for name, taken in found.items()}


def _sum(name: str, comm: MPI.Intracomm, array: np.ndarray, weight: float) -> None:
    complete(FIXED[name](comm, array, weight, True))


def _decisions(comm: MPI.Intracomm) -> dict[int, str]:
    """Return the algorithms decided on by size (bytes), which the communicator keeps.

    Wrappers share what the communicator inside keeps, except emulated links. After a hang has been reported,
    some ranks may have decided and others not, so they start afresh.
    """
    kept = comm.Get_attr(_keyval())
    if not isinstance(kept, dict):
        kept = {}
        comm.Set_attr(_keyval(), kept)
    known: dict[int, str] = kept.setdefault((getattr(comm, "emulated", ""), layers.attempt()), {})
    return known


@cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval()


def place_of(comm: MPI.Intracomm) -> str:
    """Return where the ranks of a communicator run, as rank 0 sees it. Collective.

    Costs hold only where all of this is the same: the lab's version, the MPI library and its version, the
    processor, the ranks of each host and the links.
    """
    ranks = Counter(MPI.Intracomm.allgather(comm, MPI.Get_processor_name()))
    links = "shared memory" if len(ranks) == 1 else f"network of {', '.join(sorted(ranks))}"
    if isinstance(comm, EmulatedComm):
        links = comm.emulated
    elif len(ranks) > 1 and TOKEN in os.environ:
        with suppress(HostsError):
            made = [format_bandwidth(host.bandwidth) for host in running().hosts if host.name in ranks]
            links = f"hosts with links of {', '.join(made)}"
    processor = platform.processor() or platform.machine()
    with suppress(OSError, IndexError):  # not Linux, or not a PC
        processor = re.findall("^model name.*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0]
    library = " ".join(MPI.Get_library_version().splitlines()[0].split())
    per_host = [ranks[host] for host in sorted(ranks)]
    machine = f"{processor}, {os.cpu_count()} cores; {per_host} ranks; {links}"
    return MPI.Intracomm.bcast(comm, f"labkit {labkit.__version__}; {library}; {machine}")


def file_of_costs() -> Path:
    """Return the file with the costs of all places, whether it exists or not."""
    return Path(os.environ.get(FILE) or user_cache_path("allreduce-lab") / "costs.json")


def _kept() -> dict[str, tuple[Times, str]]:
    """Return the costs in the file by place, and when they were measured. A damaged file counts as empty."""
    try:
        return {
            place: ({int(size): dict(by_name) for size, by_name in by_size.items()}, measured)
            for place, (by_size, measured) in json.loads(file_of_costs().read_bytes()).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def load(place: str) -> tuple[Times, str]:
    """Return the costs kept for a place and when the last were measured; ({}, "") if there are none."""
    if place not in _known:
        _known[place] = _kept().get(place, ({}, ""))
    return _known[place]


def save(place: str, times: Times, measured: str) -> None:
    """Keep the costs of a place in this process, and in the file of costs if that can be written to."""
    _known[place] = times, measured
    with suppress(OSError):
        file_of_costs().parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file_of_costs()) as file:
            file.write(json.dumps(_kept() | {place: (times, measured)}, indent=1).encode())
