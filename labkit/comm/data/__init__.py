"""Data sets for every rank."""
