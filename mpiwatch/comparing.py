"""The channel of a program: each rank compares its call with those of other ranks, and goes on.

Unlike in a rendezvous, no rank waits for the others, so a call costs only the time to note it. The last rank
to make a call sees the notes of all others, so a mismatch is always found. By then, the other ranks are
inside MPI and cannot leave it, but a program ends with the report anyway. The watchdog finds a rank that
never makes the call.
"""

from __future__ import annotations

import sys
from struct import Struct

from mpi4py import MPI

from mpiwatch.flight_recorder import layout
from mpiwatch.flight_recorder.layout import (
    HISTORY_CALLS,
    NO_RENDEZVOUS,
    NUMBER_SHIFT,
    WaitingIn,
)
from mpiwatch.flight_recorder.report import Mismatch
from mpiwatch.flight_recorder.snapshot import mismatch
from mpiwatch.machines.wishes import Wish
from mpiwatch.rendezvous import NOTE_BYTES, Channel, ChannelAcrossMachines, has_reached
from mpiwatch.wait import Watch

_getframe = sys._getframe
_NUMBER_AND_ROW = Struct("=2q")  # the first fields of a Call
_COMPARED = layout.Call.line.offset  # length of the fields of a Call that ranks compare


class ComparingChannel(Channel):
    """A communicator's row, and beside it the word of the rank that made the last call first."""

    def __init__(self, watch: Watch, row: int, comm: MPI.Intracomm, members: list[int]) -> None:
        super().__init__(watch, row, comm, members)
        self.lead = watch.recorder.lead_index(row)
        watch.slot.joined_word = NO_RENDEZVOUS

    def rendezvous(  # noqa: PLR0917  (every nanosecond counts)
        self,
        operation: int | str,
        deadline_s: float,
        root: int,
        count: int,
        dtype: int,
        reduction: int,
        depth: int = 2,
    ) -> None:
        """Note this call and compare it; report a mismatch. The arguments are those of Channel.rendezvous."""
        word = self._note(operation, root, count, dtype, reduction, _getframe(depth))
        if self.watch.noted_row != self.row:
            self._note_members()
        if self.words[self.lead] != word and (found := self._compare(word)) is not None:
            self._report(found, deadline_s, depth)

    def _compare(self, word: int) -> Mismatch | None:
        """Return how this call differs from another rank's, if it does."""
        words = self.words
        if not has_reached(words[self.lead], word):
            words[self.lead] = word  # this rank is the first, or one of two that call at the same time
        number = word >> NUMBER_SHIFT
        mine = self._offset(self.rank, number)
        for rank, theirs in enumerate(words[self.first : self.last]):
            if theirs == word or not has_reached(theirs, word) or (other := self._offset(rank, number)) < 0:
                continue
            if self.memory[other : other + _COMPARED] != self.memory[mine : mine + _COMPARED]:
                calls = (layout.Call.from_buffer_copy(self.memory, at) for at in (mine, other))
                if (found := mismatch(*calls)) is not None:
                    return found
        return None

    def _offset(self, rank: int, number: int) -> int:
        """Return the offset in memory of a rank's note of a call by its number; -1 if it was overwritten."""
        recorder, member = self.watch.recorder, self.members[rank]
        history, noted = recorder.history_offset(member), recorder.slots[member].calls_noted
        for i in range(noted - 1, max(-1, noted - 1 - HISTORY_CALLS), -1):
            at = history + i % HISTORY_CALLS * NOTE_BYTES
            if _NUMBER_AND_ROW.unpack_from(self.memory, at) == (number, self.row):
                return at
        return -1

    def _report(self, found: Mismatch, deadline_s: float, depth: int) -> None:
        self.watch.post_place(_getframe(depth + 1))
        self.watch.slot.waiting_in = WaitingIn.COLLECTIVE
        self.watch.publish(Wish(found, deadline_s, self.members, self.watch.rank))
        self.watch.raise_report()


def new_channel(watch: Watch, row: int, comm: MPI.Intracomm, members: list[int]) -> Channel:
    """Return the channel of a communicator of these ranks of the world."""
    if len({watch.machines[rank] for rank in members}) > 1:
        return ChannelAcrossMachines(watch, row, comm, members)
    return (ComparingChannel if watch.slot.only_compares else Channel)(watch, row, comm, members)
