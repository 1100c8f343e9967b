"""Checks for what commonly breaks an MPI lab. Trials run in child processes: MPI may be what is broken."""
