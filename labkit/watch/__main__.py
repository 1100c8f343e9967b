"""Run an mpi4py program with its ranks watched: mpiexec -n 4 python -m labkit.watch program.py."""

from labkit.watch.program.main import main

if __name__ == "__main__":
    main()
