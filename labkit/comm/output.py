"""Lines of output from many ranks.

Ranks that all write to one terminal may cut each other's lines: nothing in MPI says how a launcher forwards
output. So rank 0 is the only one to write, whole lines; the others send it theirs.
"""

from __future__ import annotations

import sys

from mpi4py import MPI

from labkit.comm import tags


def print_by_rank(comm: MPI.Intracomm, line: str, ordered: bool = False) -> None:
    """Write one line of each rank, with the rank in front: `[rank 2] …`, in order of arrival or of the ranks.

    Collective. Rank 0 writes to its standard output. A rank ahead of the others may be seen a call early when
    `ordered` is false; its own lines stay in their order.
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
