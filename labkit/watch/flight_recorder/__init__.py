"""What ranks note in memory that they share, and what is read from it: who does what, a hang's report.

None of it loads MPI, so a notebook's kernel can read it, too.
"""
