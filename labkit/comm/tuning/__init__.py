"""Choosing an all-reduce algorithm: timing, the costs kept for each machine, and the algorithm `auto`."""
