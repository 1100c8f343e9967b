"""Count 256 bytes through rank 0 and around the ring, on all ranks."""

import numpy as np
from mpi4py import MPI

from labkit.comm import CountingComm, run
from labkit.schedules import ring_allreduce, root_allreduce

counting = CountingComm(MPI.COMM_WORLD)
for schedule in root_allreduce(counting.size), ring_allreduce(counting.size):
    run(counting, schedule, np.ones(64, np.float32))
report = counting.report()
if counting.rank == 0:
    print(report)
