"""Benchmarks of the lab against PyTorch, MPI and the wire, and the command that publishes their rows."""
