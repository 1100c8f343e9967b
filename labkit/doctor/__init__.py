"""Checks for what commonly breaks an MPI lab on a machine. Each finding says how to fix it.

Nothing here loads MPI into its own process, since MPI may be what is broken. Trials run in child processes
with deadlines. `labkit.doctor.examine` runs all checks.
"""
