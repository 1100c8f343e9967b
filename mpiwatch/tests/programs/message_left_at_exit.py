"""Rank 0 sends 8 MB that rank 1 never receives; after the hang report, all ranks go on and exit."""

import numpy as np
from mpi4py import MPI

from mpiwatch.communicators import resume, watch
from mpiwatch.waiting import HangError

comm = watch()
comm.deadline_s = 0.3
reported = False
try:
    if comm.rank == 0:
        comm.Send(np.ones(1_000_000), dest=1)
except HangError:
    reported = True
MPI.COMM_WORLD.Barrier()
resume()
MPI.COMM_WORLD.Barrier()
comm.deadline_s = 20.0
reports = comm.allgather(reported)
if comm.rank == 0:
    print(reports, flush=True)
