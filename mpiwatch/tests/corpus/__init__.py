"""mpi4py programs with and without errors, in the categories of the MPI Bugs Initiative."""
