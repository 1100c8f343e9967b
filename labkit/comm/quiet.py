"""Waiting for a slow rank without taking its core.

Both MPI libraries wait by asking again and again, as fast as they can: right for microseconds, wrong while
rank 0 loads a data set for seconds and shares its core with ranks that only wait for it.
"""

from __future__ import annotations

from time import sleep

from mpi4py import MPI


def sleeping_barrier(comm: MPI.Intracomm) -> None:
    """Wait until all ranks have come here, asleep between looks (1 ms). Collective."""
    here = comm.Ibarrier()
    while not here.Test():
        sleep(0.001)
