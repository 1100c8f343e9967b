"""The price of recording: messages between pairs of ranks, with and without a recording, in turns.

Each rank sends a message to its partner and receives one from it, by Send and Recv: two calls that are
recorded. Nothing else runs in between, so this is the most that recording can cost.
"""

from __future__ import annotations

import statistics
from time import perf_counter

import numpy as np
from mpi4py import MPI

from labkit.bench.rows import Row, in_turns, rows_of
from labkit.units import KIB, MIB, format_size
from mpiwatch import watch_world
from mpiwatch.sessions import begin_recording, end_recording
from mpiwatch.trace import read

SIZES = KIB, 8 * MIB  # of a message
EXCHANGES = 50  # of a turn: 100 messages
CALLS = 2  # of an exchange, that a rank makes
ROUNDS = 15


def compare(raw: MPI.Intracomm) -> tuple[list[Row], str]:
    """Return rows for each size, in microseconds per call, and what recording adds, as text. Collective.

    Unlike the other benchmarks' communicator, the watched world is needed here: it records its calls.
    """
    world = watch_world(deadline_s=60)
    if world.size % 2:
        raise ValueError(
            f"expected an even number of ranks, which exchange messages in pairs; got {world.size}"
        )
    partner = world.rank ^ 1
    rows, texts = [], []
    for size in SIZES:
        sent, received = np.zeros(size // 8), np.zeros(size // 8)
        own_us: list[float] = []

        def exchange(sent: np.ndarray = sent, received: np.ndarray = received) -> None:
            if world.rank < partner:
                world.Send(sent, partner)
                world.Recv(received, partner)
            else:
                world.Recv(received, partner)
                world.Send(sent, partner)

        def measure_one(name: str, own_us: list[float] = own_us) -> float:
            is_recorded = name == "recorded"
            if is_recorded:
                begin_recording(world)
            MPI.Intracomm.Barrier(world)
            start = perf_counter()
            for _ in range(EXCHANGES):
                exchange()
            took_us = 1e6 * (perf_counter() - start) / (CALLS * EXCHANGES)
            if is_recorded:
                own_us.append(1e6 * read(end_recording()).own_s / (CALLS * EXCHANGES))
            return float(MPI.Intracomm.allreduce(world, took_us, MPI.MAX))

        times = in_turns(("recorded", "not-recorded"), ROUNDS, measure_one)
        medians = {name: statistics.median(measured) for name, measured in times.items()}
        rows += rows_of(f"recorded/{format_size(size)}/p{world.size}", medians, "us")
        added_us = medians["recorded"] - medians["not-recorded"]
        percent = 100 * added_us / medians["not-recorded"]
        texts.append(
            f"{format_size(size)}: a call takes {added_us:.1f} µs more ({percent:.1f} %); recording counts "
            f"{statistics.median(own_us):.1f} µs of it."
        )
    return rows, "\n".join(texts)
