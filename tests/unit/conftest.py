"""No unit test is an MPI process: what they import may load MPI, but never starts it."""

import mpi4py

mpi4py.rc.initialize = False
