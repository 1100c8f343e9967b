"""Run a program on MPI ranks, and print how many bytes its busiest rank has sent and received.

`mpiexec -n 4 python -m labkit.exercises.counted_run my_ddp.py --average ring`. The program's COMM_WORLD is
one that counts each message. What it sends inside the MPI library's own collectives is not counted.
"""

from __future__ import annotations

import runpy
import sys

import numpy as np
from mpi4py import MPI

from labkit.comm import CountingComm

PRINTED = "the busiest rank: {} bytes"


def main() -> None:
    """Run the program of the command line with a communicator that counts."""
    comm = CountingComm(MPI.COMM_WORLD)
    MPI.COMM_WORLD = comm  # type: ignore[misc]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
    by_rank = np.zeros(comm.size, np.int64)
    for row in comm.traffic():
        if row.sent is not None:
            by_rank += row.by_rank
    if comm.rank == 0:
        print(PRINTED.format(by_rank.max()))


if __name__ == "__main__":
    main()
