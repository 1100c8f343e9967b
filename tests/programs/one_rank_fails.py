"""Let one rank fail while the others wait for it: mpiexec -n p python one_rank_fails.py RANK."""

import sys

from mpi4py import MPI

from labkit.cli.ranks import ending_together

comm = MPI.COMM_WORLD
with ending_together(comm, "labkit test"):
    if comm.rank == int(sys.argv[1]):
        raise RuntimeError("out of paper")
    comm.Barrier()
