"""Measure on three hosts, the last with a slow link, how many bytes went over the links, and how fast.

    labkit hosts run python measure.py

One line of JSON: {"hosts": names by rank, "ring" and "allreduce": {host: [received, sent]} in bytes of one
collective of BYTES, "seconds": {"source>destination": median time of one message of BYTES}}.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from labkit import hosts
from labkit.comm import run
from labkit.schedules import ring_allreduce

BYTES = 4 * 2**20
comm = MPI.COMM_WORLD


def moved(collective: Callable[[np.ndarray], object]) -> dict[str, list[int]]:
    """Return the bytes that each host received and sent while the collective ran."""
    array = np.zeros(BYTES // 4, np.float32)
    collective(array)  # TCP finds out each link's bandwidth, by losing packets
    array[:] = comm.rank + 1
    comm.Barrier()
    before = hosts.counters()
    comm.Barrier()
    collective(array)
    assert (array == comm.size * (comm.size + 1) / 2).all()
    comm.Barrier()
    after = hosts.counters()
    return {
        name: [after[name].received - was.received, after[name].sent - was.sent]
        for name, was in before.items()
    }


def seconds(source: int, dest: int) -> float:
    """Return the median time of one message, on the rank that receives it; 0 elsewhere."""
    message, times = np.zeros(BYTES, np.uint8), []
    for _ in range(5):
        comm.Barrier()
        start = time.perf_counter()
        if comm.rank == source:
            comm.Send(message, dest)
        elif comm.rank == dest:
            comm.Recv(message, source)
            times.append(time.perf_counter() - start)
    return statistics.median(times) if times else 0.0


names = comm.gather(socket.gethostname())
schedule = ring_allreduce(comm.size)
said = {
    "hosts": names,
    "ring": moved(lambda array: run(comm, schedule, array)),
    "allreduce": moved(lambda array: comm.Allreduce(MPI.IN_PLACE, array)),
    "seconds": {
        f"{source}>{dest}": comm.allreduce(seconds(source, dest))
        for source, dest in ((0, 1), (1, 0), (0, 2), (2, 0))
    },
}
if comm.rank == 0:
    print(json.dumps(said), flush=True)
