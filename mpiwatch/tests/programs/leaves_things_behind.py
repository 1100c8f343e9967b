"""Leave a communicator, a request and a message behind."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
half = comm.Split(comm.rank % 2)
if comm.rank == 0:
    late = comm.Irecv(np.zeros(4), source=1, tag=3)
    lost = comm.isend("to nobody", dest=1, tag=4)
print("end", comm.rank)
