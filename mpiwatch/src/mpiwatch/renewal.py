"""After a cell that failed, the world's communicator goes on, and all that was made from it ends.

MPI cannot take a message back. So the world's communicator gets a fresh handle with a context of its own:
what was sent before on the old handle matches nothing that is received from now on. The fresh handle is
written into the one object that `comm` and `MPI.COMM_WORLD` refer to. Communicators, windows and files that
were made before raise `EndedError` from then on, which names the cell to run again. All ranks take part, when
each has ended the cell; they agree over a duplicate of the world that no cell can use.

Old handles are never freed: MPI could give their context to a new communicator while a message that belongs
to it is still on its way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

from mpi4py import MPI

from mpiwatch.ended import end_others, end_request
from mpiwatch.interrupts import without_interrupts
from mpiwatch.library_calls import RawComm, RawIntracomm
from mpiwatch.recorder import CellState
from mpiwatch.under_way import has_unfinished, under_way
from mpiwatch.waiting import NAP_S, Watch

DRAIN_S = 2.0  # for the messages of a failed cell to arrive, at the end of the program
SETTLE_S = 1.0  # the same between two cells
QUIET_ROUNDS = 3  # without a message, before it is likely that none is on its way


class Renewal:
    """What a rank needs to go on after a failed cell.

    `private`: a duplicate of the world, made by `prepare`. `for_rendezvous`: another one, whose messages
    may be left behind, and Open MPI's Create_group takes messages of the communicator that it is called on.
    `is_due`: whether a cell has failed on this rank since the last renewal. `retired`: communicators with old
    handles.
    """

    def __init__(self) -> None:
        self.private: Any = None
        self.for_rendezvous: Any = None
        self.is_due = False
        self.retired: list[Any] = []

    def prepare(self, world: MPI.Intracomm) -> None:
        """Make the duplicates over which the ranks will agree and meet. The first call is collective."""
        if self.private is None:
            self.private = RawIntracomm.Dup(RawIntracomm(world))
            self.for_rendezvous = RawIntracomm.Dup(self.private)

    def is_due_on_any_rank(self) -> bool:
        """Return whether a cell has failed on any rank since the last renewal. Collective."""
        return bool(self.private.allreduce(self.is_due, MPI.LOR))

    def renew(self, world: Any, because: str) -> None:
        """Let `world` go on with a fresh handle, and end what was made from it. Collective.

        `because`: what has happened, such as "cell [7] failed".
        """
        with without_interrupts():
            self.private.Barrier()  # all ranks have ended the cell
            for request, made in under_way.end_all():
                end_request(request, made, because)
            self.retired += [RawIntracomm(world), *end_others(world, because)]
            write_handle(world, self.fresh(world))
            world._renew(lambda: self.fresh(world))
            watch = getattr(world, "watch", None)
            if watch is not None:
                self.count_on(watch, world)
            self.settle()
            self.is_due = False

    def fresh(self, world: MPI.Intracomm) -> Any:
        """Return a communicator like the world's, made without a message on the world's. Collective."""
        group = self.private.Get_group()
        new = self.private.Create_group(group)
        group.Free()
        handler = world.Get_errhandler()
        new.Set_errhandler(handler)
        handler.Free()
        new.Set_name(world.Get_name())
        return new

    def count_on(self, watch: Watch, world: Any) -> None:
        """Let all ranks number their next collective alike: the cell may have ended at different ones."""
        for channel in [channel for channel in watch.channels if channel is not world._channel]:
            channel.close()
        world._channel.comm = RawIntracomm(world)
        number = self.private.allreduce(max(watch.recorder.head.first_number, world._channel.number), MPI.MAX)
        watch.join_epoch()
        world._channel.number = number

    def settle(self) -> None:
        """Receive what was sent on old handles, so that sends complete and buffers can go. Collective."""
        deadline, quiet = monotonic() + SETTLE_S, 0
        while quiet < QUIET_ROUNDS:
            is_busy = receive_and_discard([*self.retired, MPI.COMM_SELF]) or has_unfinished()
            votes = self.private.allgather((is_busy, monotonic() > deadline))
            quiet = 0 if any(busy for busy, _ in votes) else quiet + 1
            if votes[0][1]:
                break

    def drain(self, watch: Watch) -> None:
        """Receive and discard, before MPI ends, what failed cells and hangs have left.

        MPICH aborts in MPI_Finalize if a large message was never received, and cannot cancel one. So each
        rank discards messages until all ranks are here and its own sends are done, for at most DRAIN_S.
        """
        # If no rank has seen a hang, and no cell has failed, what is left is the program's own affair.
        if MPI.Is_finalized() or not (watch.recorder.head.epoch or self.retired):
            return
        watch.end_cell(CellState.RETURNED, "")
        deadline = monotonic() + DRAIN_S
        is_last_round = False
        while monotonic() < deadline:
            receive_and_discard([*self.retired, *(channel.comm for channel in watch.channels)])
            is_busy = has_unfinished()
            if is_last_round:
                return
            all_here = all(slot.cell_state != CellState.RUNNING for slot in watch.recorder.slots)
            is_last_round = all_here and not is_busy
            sleep(NAP_S)


renewal = Renewal()  # of this process


def write_handle(comm: MPI.Intracomm, new: MPI.Intracomm) -> None:
    """Let an existing object refer to another communicator of the MPI library."""
    ctypes.memmove(MPI._addressof(comm), MPI._addressof(new), MPI._sizeof(new))


def receive_and_discard(comms: Sequence[Any]) -> bool:
    """Receive and discard the messages that have arrived; return whether there were any."""
    status, is_any = MPI.Status(), False
    for comm in comms:
        while True:
            message = RawComm.Improbe(comm, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            if message is None:
                break
            message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])
            is_any = True
    return is_any
