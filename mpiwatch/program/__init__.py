"""Run an unchanged mpi4py program with its ranks watched: `labkit run` and `python -m mpiwatch`.

Each rank has two processes: the program and its parent. The parent outlives the program, names the rank if it
dies, prints the report of a hang and ends the job.
"""
