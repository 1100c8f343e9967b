"""One clock for all ranks: the offset between this rank's clock and rank 0's.

On one machine `time.perf_counter` is the same clock for all processes (CLOCK_MONOTONIC on Linux,
mach_absolute_time on macOS). Between machines the offset is measured by ping-pong: rank 0 read its clock
half-way through the fastest round trip, with an error of at most half of that trip. Source: F. Cristian,
Probabilistic clock synchronization, Distributed Computing 3, 1989, 146–158.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
from mpi4py import MPI

from labkit.comm import tags
from labkit.comm.timing import count_hosts

ROUND_TRIPS = 20


def offset(comm: MPI.Intracomm, clock: Callable[[], float] = perf_counter) -> float:
    """Return the seconds to add to this rank's clock to get rank 0's. Collective.

    The error is at most half of the fastest round trip to rank 0; on a single host, there is none.
    """
    if clock is perf_counter and count_hosts(comm) == 1:
        return 0.0
    there, back = np.zeros(1), np.zeros(1)
    ahead_s = 0.0
    for rank in range(1, comm.size):
        comm.Barrier()  # one rank at a time, so that no other messages slow the round trips
        if comm.rank == 0:
            for _ in range(ROUND_TRIPS):
                comm.Recv(there, rank, tags.CLOCK)
                back[0] = clock()
                comm.Send(back, rank, tags.CLOCK)
        elif comm.rank == rank:
            trips = []
            for _ in range(ROUND_TRIPS):
                began = clock()
                comm.Send(there, 0, tags.CLOCK)
                comm.Recv(back, 0, tags.CLOCK)
                ended = clock()
                trips.append((ended - began, back[0] - (began + ended) / 2))
            ahead_s = float(min(trips)[1])
    return ahead_s
