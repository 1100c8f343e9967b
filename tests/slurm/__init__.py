"""Tests on a real SLURM that runs on this machine alone."""
