"""Make each of the calls below on every rank but the last one: python missing_rank.py DEADLINE_S.

Each rank prints the message of the TimeoutError that it gets, after the name of the call.
"""

from __future__ import annotations

import os
import sys

import numpy as np
from mpi4py import MPI

from labkit import comm as lab
from labkit.comm.running import complete
from labkit.schedules import ring_allreduce
from mpiwatch import waiting

world = MPI.COMM_WORLD
everyone = world.Dup()  # its messages cannot be taken for those of a call that failed
used = lab.RingComm(world.Dup())
used.Allreduce(MPI.IN_PLACE, np.ones(10))
x = np.ones(10)
shared = world.Dup()
lab.ALGORITHMS["shared-memory"](shared, x, 0.25)
calls = {
    "run": lambda comm: lab.run(comm, ring_allreduce(comm.size), x),
    "algorithm": lambda comm: lab.Averaging("ring", "mean")(comm, x, 1 / comm.size),
    "RingComm": lambda comm: lab.RingComm(comm).Allreduce(MPI.IN_PLACE, x),
    "used RingComm": lambda comm: used.Allreduce(MPI.IN_PLACE, x),
    "started": lambda comm: complete(lab.ALGORITHMS["ring"].steps(comm, x, 1.0)),
    "shared memory": lambda comm: lab.ALGORITHMS["shared-memory"](shared, x, 1.0),
}
waiting.DEADLINE_S = float(sys.argv[1])
for name, call in calls.items():
    comm = everyone.Dup()
    if world.rank != world.size - 1:
        try:
            call(comm)
        except TimeoutError as error:
            sys.stdout.write(f"{name}: {error}\n")
            sys.stdout.flush()
    everyone.Barrier()
os._exit(0)  # MPI_Finalize would wait for messages that nobody receives
