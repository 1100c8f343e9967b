"""Programs of mpi4py with and without errors, after the categories of the MPI Bugs Initiative."""
