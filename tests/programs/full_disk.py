"""Run a `labkit` command whose files may have at most 25 kB, as if the disk got full: mpiexec … COMMAND."""

import resource
import sys

from mpi4py import MPI  # first: it makes larger files in shared memory

from labkit.cli import main

MPI.COMM_WORLD.Barrier()
resource.setrlimit(resource.RLIMIT_FSIZE, (25_000, resource.RLIM_INFINITY))
main(sys.argv[1:])
