"""The flight recorder: what each rank last called, in memory that the ranks share, and reports made from it.

Nothing here loads MPI, so a notebook's kernel can read it.
"""
