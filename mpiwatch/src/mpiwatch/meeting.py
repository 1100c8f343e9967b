"""A meeting of some ranks before a call of the MPI library that only they make, and that none could leave.

`Create_group` and `Create_intercomm` are not calls of all ranks of a communicator, so their ranks cannot meet
as for a collective. They send one another empty messages, on a communicator that the program does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from mpiwatch.message_waits import Pending, wait_for_pending
from mpiwatch.waiting import attempt

TAGS = 2**15 - 1  # of one attempt and the next; every MPI library has as many


def meet(world: MPI.Intracomm, members: Sequence[int], operation: str) -> None:
    """Return when all these ranks have called the same operation; raise HangError with one that has not.

    `world`: a duplicate of the world that nothing else sends messages on; `members`: ranks of the world, this
    one among them.
    """
    others = [rank for rank in members if rank != world.rank]
    tag = attempt() % TAGS
    receives = {rank: world.Irecv(bytearray(0), rank, tag) for rank in others}
    sends = [world.Isend(b"", rank, tag) for rank in others]

    def have_all_come() -> bool:
        for rank in [rank for rank, request in receives.items() if request.Test()]:
            del receives[rank]
        return not receives and MPI.Request.Testall(sends)

    try:
        wait_for_pending(have_all_come, lambda: Pending(world, operation, list(receives), []))
    except BaseException:
        for request in receives.values():
            request.Cancel()
        raise
