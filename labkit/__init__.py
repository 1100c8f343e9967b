"""Allreduce Lab: data-parallel training by hand, in NumPy, on real MPI ranks."""

import mpiwatch

__version__ = "0.1.0"

mpiwatch.libraries.append("labkit")
