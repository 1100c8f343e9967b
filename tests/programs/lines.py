"""Thousands of lines of every rank, then as many in order: python lines.py HOW_MANY."""

import sys

from mpi4py import MPI

from labkit.comm import print_by_rank

comm = MPI.COMM_WORLD
how_many = int(sys.argv[1])
for ordered in (False, True):
    for i in range(how_many):
        # Lines of many lengths, some longer than a pipe passes on in one piece.
        print_by_rank(
            comm,
            f"{'by rank' if ordered else 'any'} {i} " + "x" * (1 + (7919 * i + comm.rank) % 9000),
            ordered,
        )
    comm.Barrier()
