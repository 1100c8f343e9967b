"""Benchmarks: rows of ratios, the lab against other ways to do the same, measured in one run."""
