"""What watching costs: an Allreduce of the watched communicator against the same one of MPI's own.

Most of the price is that ranks wait for one another before the call: a Barrier of MPI's own before it shows
what that costs alone.
"""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.bench.rows import Row
from labkit.units import format_size
from labkit.watch.communicators import watch

# Bytes of an Allreduce -> calls in a row, of which one time is taken.
SIZES = {1 << 10: 100, 1 << 20: 10, 16 << 20: 2}


def measure(rounds: int = 11) -> list[Row]:
    """Return a row for each size, in microseconds a call; the same on every rank. Collective.

    The ways take turns, round after round, and a round's time is that of the slowest rank.
    """
    raw, watched = MPI.COMM_WORLD, watch()

    def barrier_first(*arguments: Any) -> None:
        raw.Barrier()
        raw.Allreduce(*arguments)

    algorithms = {"watched": watched.Allreduce, "raw": raw.Allreduce, "barrier + raw": barrier_first}
    rows = []
    for size, calls in SIZES.items():
        array = np.zeros(size // 4, np.float32)
        times: dict[str, list[float]] = {name: [] for name in algorithms}
        for number in range(-1, rounds):
            for name, algorithm in list(algorithms.items())[:: 1 if number % 2 else -1]:
                raw.Barrier()
                start = perf_counter()
                for _ in range(calls):
                    algorithm(MPI.IN_PLACE, array)
                taken = raw.allreduce((perf_counter() - start) / calls, MPI.MAX)
                if number >= 0:  # the first warms up
                    times[name].append(1e6 * taken)
        ours, *others = (statistics.median(times[name]) for name in algorithms)
        case = f"allreduce/{format_size(size)}/p{raw.size}"
        for name, theirs in zip(list(algorithms)[1:], others, strict=True):
            rows.append(Row(case, ours, name, theirs, "us", ours / theirs))
    return rows
