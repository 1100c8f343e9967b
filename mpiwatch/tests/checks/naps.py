"""Ranks that wait for one that works for long leave it the cores."""

from __future__ import annotations

import resource
import time

from mpi4py import MPI

from mpiwatch.message_waits import sleeping_barrier
from mpiwatch.processes import LINUX

WORK_S = 2.0
FEW = 600  # polls in this time; there were a thousand each second


def naps() -> int:
    """Return how often this thread has gone to sleep."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if LINUX else 0


def check_a_sleeping_barrier_polls_less_often_the_longer_it_waits(comm: MPI.Intracomm) -> None:
    if comm.rank == 0:
        time.sleep(WORK_S)
    before = naps()
    sleeping_barrier(comm)
    assert naps() - before < FEW
