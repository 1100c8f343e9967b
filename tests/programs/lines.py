"""Thousands of lines of every rank: python lines.py HOW_MANY."""

import sys

from mpi4py import MPI

from labkit.train.printing import Printer

comm = MPI.COMM_WORLD
how_many = int(sys.argv[1])
with Printer(comm, how_many) as printer:
    for i in range(how_many):
        # Lines of many lengths, some longer than a pipe passes on in one piece.
        printer.say(f"{i} " + "x" * (1 + (7919 * i + comm.rank) % 9000))
