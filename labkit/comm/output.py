"""Lines of output from many ranks.

When all ranks write to one terminal, their lines may be mixed up: MPI does not define how a launcher forwards
output. So the ranks send their lines to rank 0, which alone writes them.
"""

from __future__ import annotations

import sys

from mpi4py import MPI

from labkit.comm import tags


def print_by_rank(comm: MPI.Intracomm, line: str, ordered: bool = False) -> None:
    """Print one line of each rank, as `[rank 2] …`, in order of arrival or, if `ordered`, of the ranks.

    Collective. Rank 0 writes to its standard output. Unless `ordered`, the line of a rank that is ahead may
    appear among those of the call before; the lines of one rank stay in their order.
    """
    line = f"[rank {comm.rank}] {line}\n"
    if ordered:
        lines = comm.gather(line)
        if lines is not None:
            _write("".join(lines))
    elif comm.rank:
        comm.send(line, 0, tags.PRINT)
    else:
        _write(line)
        for _ in range(comm.size - 1):
            _write(comm.recv(source=MPI.ANY_SOURCE, tag=tags.PRINT))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
