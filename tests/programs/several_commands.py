"""Run `labkit` commands one after the other: mpiexec -n p python … JSON, a list of lists of arguments.

One job for all of them saves the start of Python on each rank. After each command rank 0 writes the exit
statuses of all ranks to standard error, as a line that begins with ENDED.
"""

import json
import sys

from mpi4py import MPI

from labkit.cli import main

comm = MPI.COMM_WORLD
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        statuses = comm.gather(ended.code)
    if comm.rank == 0:
        print(f"ENDED {statuses}", file=sys.stderr, flush=True)
