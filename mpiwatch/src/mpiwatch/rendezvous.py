"""A rendezvous of some ranks before a call of the MPI library that none of them could leave.

As long as a call that makes a communicator, a window or a file is under way, MPI can make no other. So the
ranks of a notebook make such a call only when all of them have come to it. On watched communicators they meet
as before any collective. Ranks that make a call of their own (`Create_group`, `Create_intercomm`), and those
of communicators that are not watched, send one another empty messages, on a communicator that the program
does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from mpiwatch import library_calls
from mpiwatch.library_calls import RawComm, RawIntracomm
from mpiwatch.message_waits import Pending, wait_for_pending
from mpiwatch.report import CONNECTING
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
        wait_for_pending(have_all_come, lambda: Pending(world, operation, list(receives), [], True))
    except BaseException:
        for request in receives.values():
            request.Cancel()
        raise


class RendezvousBeforeCalls:
    """Lets ranks meet before they make something on a communicator that is not watched.

    `world`: see `meet`.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        self.world, self.everybody = world, world.Get_group()

    def before(self, name: str, subject: Any, arguments: Sequence[Any], named: dict[str, Any]) -> None:
        """Wait for the ranks that make a call of `library_calls.MAKING` or `report.CONNECTING` together.

        `subject`: the communicator, or the class for a class method; `arguments` and `named` of the call. If
        they make no sense, do nothing: mpi4py says what is wrong.
        """
        if getattr(subject, "_channel", None) is not None and name not in CONNECTING:
            return  # watched: the ranks meet as before any collective
        try:
            if name in ("Create_group", "Create_from_group"):
                self.meet_ranks(self.ranks_of(named.get("group") or arguments[0]), name)
            elif name == "Create_intercomm":
                self.meet_for_intercomm(subject, *arguments, **named)
            elif isinstance(subject, RawComm):
                self.meet_all(subject, name)
        except (MPI.Exception, AttributeError, IndexError, TypeError):
            return

    def meet_all(self, comm: MPI.Comm, name: str) -> None:
        """Wait for all ranks of a communicator, on both sides of an intercommunicator."""
        groups = [comm.Get_group()]
        if isinstance(comm, MPI.Intercomm):
            groups.append(comm.Get_remote_group())
        members = [rank for group in groups for rank in self.ranks_of(group)]
        for group in groups:
            group.Free()
        self.meet_ranks(members, name)

    def meet_for_intercomm(
        self,
        comm: MPI.Intracomm,
        local_leader: int,
        peer_comm: MPI.Intracomm,
        remote_leader: int,
        tag: int = 0,
    ) -> None:
        """Wait for the ranks of this side, and with its leader for the other side's."""
        self.meet_all(comm, "Create_intercomm")
        if comm.rank == local_leader:
            peers = peer_comm.Get_group()
            ranks = self.ranks_of(peers)
            peers.Free()
            if 0 <= remote_leader < len(ranks):
                self.meet_ranks([ranks[peer_comm.rank], ranks[remote_leader]], "Create_intercomm")
        self.meet_all(comm, "Create_intercomm")  # the leaders have met

    def ranks_of(self, group: MPI.Group) -> list[int]:
        """Return the ranks of the world that are a group's members; MPI.UNDEFINED for other processes."""
        return [int(rank) for rank in MPI.Group.Translate_ranks(group, None, self.everybody)]

    def meet_ranks(self, members: Sequence[int], name: str) -> None:
        """Wait for these ranks, if this rank is one of them and none is a process outside the world."""
        if self.world.rank in members and MPI.UNDEFINED not in members:
            meet(self.world, members, name)


def install(world: MPI.Intracomm) -> None:
    """Let ranks meet before they make something on communicators that are not watched.

    `world`: see `meet`.
    """
    library_calls.meet = RendezvousBeforeCalls(RawIntracomm(world)).before
