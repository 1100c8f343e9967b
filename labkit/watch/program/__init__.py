"""Run an unchanged mpi4py program with its ranks watched: `labkit run` and `python -m labkit.watch`.

Each rank is two processes: the program, and its parent, which outlives it, names it if it dies, prints the
report of a hang and ends the job.
"""
