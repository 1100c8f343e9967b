"""The cost of watching: Allreduce on the watched communicator against the MPI library's own.

A program's ranks compare their calls without waiting ("compared"). On engines, ranks wait for each other
before the call ("watched"), which causes most of the cost. An Allreduce after a Barrier shows the cost of
that wait alone.
"""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.bench.rows import Row, in_turns, rows_of
from labkit.units import KIB, MIB, format_size
from mpiwatch.layers import watch, without_rendezvous

# Bytes of an Allreduce → consecutive calls that are timed together.
SIZES = {KIB: 100, MIB: 10, 16 * MIB: 2}
ROUNDS = 11


def compare(raw: MPI.Intracomm) -> tuple[list[Row], str]:
    """Return rows for each size, in microseconds per call, the same on every rank, and no text. Collective.

    The three take turns, round after round; a round's time is that of the slowest rank.
    """
    watched = watch()
    compared = without_rendezvous(watched)  # as in a program

    def barrier_first(*arguments: Any) -> None:
        raw.Barrier()
        raw.Allreduce(*arguments)

    functions = {
        "watched": watched.Allreduce,
        "compared": compared.Allreduce,
        "mpi-allreduce": raw.Allreduce,
        "barrier+mpi-allreduce": barrier_first,
    }
    rows = []
    for size, calls in SIZES.items():
        array = np.zeros(size // 4, np.float32)

        def measure_one(name: str, array: np.ndarray = array, calls: int = calls) -> float:
            raw.Barrier()
            start = perf_counter()
            for _ in range(calls):
                functions[name](MPI.IN_PLACE, array)
            return 1e6 * raw.allreduce((perf_counter() - start) / calls, MPI.MAX)

        times = in_turns(functions, ROUNDS, measure_one, warm_up=1)
        medians = {name: statistics.median(measured) for name, measured in times.items()}
        case = f"{format_size(size)}/p{raw.size}"
        rows += rows_of(
            f"compared/{case}", {name: medians[name] for name in ("compared", "mpi-allreduce")}, "us"
        )
        del medians["compared"]
        rows += rows_of(f"watched/{case}", medians, "us")
    return rows, ""
