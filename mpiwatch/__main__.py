"""Run an mpi4py program with its ranks watched: mpiexec -n 4 python -m mpiwatch program.py."""

from mpiwatch.program.main import main

if __name__ == "__main__":
    main()
