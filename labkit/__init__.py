"""Allreduce Lab: data-parallel training by hand, in NumPy, on real MPI ranks."""

__version__ = "0.1.0"
