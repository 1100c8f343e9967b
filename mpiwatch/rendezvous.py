"""The rendezvous before a collective: each rank notes its call and waits until all have made the same one."""

from __future__ import annotations

import ctypes
import sys
from _thread import get_ident
from collections.abc import Callable
from time import sleep
from types import FrameType
from weakref import WeakMethod

from mpi4py import MPI

import mpiwatch
from mpiwatch.flight_recorder import layout, snapshot
from mpiwatch.flight_recorder.layout import (
    EPOCH_SHIFT,
    GAVE_UP,
    HISTORY_CALLS,
    NO_RENDEZVOUS,
    NUMBER_MASK,
    NUMBER_SHIFT,
    WaitingIn,
)
from mpiwatch.flight_recorder.members import write_members
from mpiwatch.flight_recorder.opcodes import OPERATIONS, UNKNOWN
from mpiwatch.flight_recorder.report import Mismatch, Reason
from mpiwatch.machines.wishes import Wish
from mpiwatch.wait import DEADLINE_S, Waiting, Watch
from mpiwatch.wrapper import CommWrapper

VISIBLE_S = 0.001  # a thousand times as long as a write takes to reach the other cores
NUMBER_UNIT, EPOCH_UNIT = 1 << NUMBER_SHIFT, 1 << EPOCH_SHIFT
HALF_OF_NUMBERS = (NUMBER_MASK >> 1) << NUMBER_SHIFT

COLLECTIVES = "mpiwatch.arrays", "mpiwatch.objects"  # the modules with their methods
NOTE_BYTES = ctypes.sizeof(layout.Call)
_NUMBER_AND_EPOCH = -NUMBER_UNIT  # mask that clears a word's digest
_write, _getframe = layout.NUMBERED_CALL.pack_into, sys._getframe


def has_reached(theirs: int, word: int) -> bool:
    """Tell whether a rank has made a call of this word's number, the same or another one, or a later one."""
    ahead = ((theirs >> NUMBER_SHIFT) - (word >> NUMBER_SHIFT)) & NUMBER_MASK
    return theirs >> EPOCH_SHIFT == word >> EPOCH_SHIFT and ahead < NUMBER_MASK >> 1


class Channel:
    """A communicator's row in the flight recorder: one word per rank that identifies the rank's last call.

    In a word (see layout.py), the number counts the collectives on this communicator, and the epoch counts
    hangs. `members`: ranks of the world, by rank in the communicator.
    """

    def __init__(self, watch: Watch, row: int, comm: MPI.Intracomm, members: list[int]) -> None:
        self.watch, self.row, self.rank, self.members = watch, row, comm.rank, members
        self.comm = MPI.Intracomm(comm)  # the MPI library's, without its wrappers
        recorder = watch.recorder
        self.memory, self.words, self.size = recorder.memory, recorder.words, len(members)
        self.first = row * recorder.size  # in words
        self.last = self.first + len(members)
        self.own = self.first + self.rank
        self.low = recorder.words_offset + 8 * self.first  # in bytes
        self.high = self.low + 8 * len(members)
        self.number = recorder.head.first_number
        self.epoch_made = watch.epoch
        self.caller = get_ident()  # the thread that called the last collective
        self.companions: list[tuple[MPI.Intracomm, WeakMethod[Callable[[], object]]]] = []
        watch.channels.append(self)

    def live_companions(self) -> dict[int, tuple[MPI.Intracomm, Callable[[], object]]]:
        """Return the duplicates of this communicator for the lab's own messages, by their numbers.

        Each comes with the function to call when it has been renewed.
        """
        return {
            number: (own, reset)
            for number, (own, made) in enumerate(self.companions)
            if (reset := made()) is not None and own != MPI.COMM_NULL
        }

    def close(self) -> None:
        """Give the row back; called by every rank when all are done with the communicator."""
        self.watch.channels.remove(self)
        if self.rank == 0:
            self.watch.free_rows.append(self.row)

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
        """Note this call, and return when all members have made the same; raise HangError if they cannot.

        `operation`: its number, or the name of a schedule; `dtype`: NumPy's number of it; `reduction`: the
        identity of an `MPI.Op`; -1 for none. `depth`: frames between this one and the caller's.
        """
        frame = _getframe(depth)
        word = self._note(operation, root, count, dtype, reduction, frame)
        watch, memory, slot = self.watch, self.memory, self.watch.slot
        low, high, first, last, words = self.low, self.high, self.first, self.last, self.words
        same = word.to_bytes(8, sys.byteorder) * self.size
        while True:
            for _ in watch.polls:
                if memory[low:high] == same or (
                    min(words[first:last]) >= word & _NUMBER_AND_EPOCH and self.all_joined(word)
                ):
                    break
                watch.pause()
            else:
                watch.wait(lambda: self.all_joined(word), Rendezvous(self, word, deadline_s, frame))
            # From here on other ranks may rely on this one. So it checks again after writing `joined_word`
            # whether one has given up. A rank that gives up says so in its word, waits until that is visible,
            # and stays if another rank's `joined_word` shows that it is relied upon.
            slot.joined_word = word
            if memory[low:high] == same or self.all_joined(word):
                return
            slot.joined_word = 0

    def _note(  # noqa: PLR0917
        self, operation: int | str, root: int, count: int, dtype: int, reduction: int, frame: FrameType
    ) -> int:
        """Write a call to this rank's slot and row; return its word."""
        watch = self.watch
        if (caller := get_ident()) != self.caller:
            self._change_caller(caller, frame)
        # A loop makes the same call from the same line again and again, so its note is built once.
        key = (operation, root, count, dtype, reduction, frame.f_lasti, id(frame.f_code), self.row)
        _, digest, note = watch.notes.get(key) or watch.note(key, frame)
        self.number = number = (self.number + 1) & NUMBER_MASK
        place = watch.base | number << NUMBER_SHIFT
        calls = watch.calls
        _write(self.memory, watch.history + calls % HISTORY_CALLS * NOTE_BYTES, place >> NUMBER_SHIFT, note)
        watch.slot.calls_noted = watch.calls = calls + 1
        self.words[self.own] = word = place | digest
        return word

    def _change_caller(self, caller: int, frame: FrameType) -> None:
        """Note that another thread calls a collective; report it if the last one is still inside of one.

        MPI matches the collectives of a communicator by their order. It has none if two threads call them.
        """
        last, self.caller = sys._current_frames().get(self.caller), caller
        while last is not None and last.f_globals.get("__name__", "").startswith(tuple(mpiwatch.libraries)):
            if last.f_globals["__name__"] in COLLECTIVES and last.f_locals["self"]._channel is self:
                self.watch.post_place(frame)
                self.watch.slot.waiting_in = WaitingIn.COLLECTIVE
                self.watch.publish(Wish(Reason.THREADS, 0.0, self.members, self.watch.rank))
                self.watch.raise_report()
            last = last.f_back

    def _note_members(self) -> None:
        """Write the members of this communicator to the slot of this rank, for the report."""
        self.watch.noted_row = self.row
        write_members(self.watch.slot, self.members)

    def all_joined(self, word: int) -> bool:
        """Tell whether all ranks have made the call of this word, or later ones; false if calls differ."""
        lowest, highest = word & ~(NUMBER_UNIT - 1), word | NUMBER_UNIT - 1  # words of this number
        # Numbers start again from 0 some day.
        behind = lowest - HALF_OF_NUMBERS
        ahead = min(highest + HALF_OF_NUMBERS, word | EPOCH_UNIT - 1)
        for rank, theirs in enumerate(self.words[self.first : self.last]):
            if theirs == word or highest < theirs < ahead:
                continue
            if behind < theirs < lowest or not self.has_joined(rank, word):
                return False
        return True

    def all_have_reached(self, number: int) -> bool:
        """Tell whether all ranks have made the call of this number (with its epoch), or later ones."""
        return all(has_reached(word, number << NUMBER_SHIFT) for word in self.words[self.first : self.last])

    def has_joined(self, rank: int, word: int) -> bool:
        """Tell whether a rank has made the same call, or a later one."""
        theirs = self.words[self.first + rank]
        if theirs == word:
            return True
        if (theirs ^ word) >> NUMBER_SHIFT:
            return has_reached(theirs, word)
        return not theirs & GAVE_UP and self.mismatch_with(rank, word) is None

    def mismatch_with(self, rank: int, word: int) -> Mismatch | None:
        """Return in what a rank's call of the same number differs from ours."""
        theirs = self.watch.recorder.words[self.first + rank]
        if theirs == word or (theirs ^ word) >> NUMBER_SHIFT or theirs & GAVE_UP:
            return None
        number = word >> NUMBER_SHIFT
        mine, other = self.noted_call(self.rank, number), self.noted_call(rank, number)
        if mine is None or other is None:
            return None
        return snapshot.mismatch(mine, other)

    def noted_call(self, rank: int, number: int) -> layout.Call | None:
        """Return a rank's note of its call of this number here; None if it is no longer kept."""
        for call in reversed(self.watch.recorder.last_calls(self.members[rank])):
            if call.row == self.row and call.number == number:
                return call
        return None


class ChannelAcrossMachines(Channel):
    """The channel of a communicator whose ranks share no memory: each rank notes its call and goes on.

    When the ranks are stuck, the hub reads what they noted: see mpiwatch.machines.
    """

    def rendezvous(  # noqa: PLR0917
        self,
        operation: int | str,
        deadline_s: float,
        root: int,
        count: int,
        dtype: int,
        reduction: int,
        depth: int = 2,
    ) -> None:
        """Note this call; raise HangError if there has been a report. The arguments are those of Channel."""
        self._note(operation, root, count, dtype, reduction, _getframe(depth))
        self.watch.check_epoch()
        self.watch.slot.joined_word = NO_RENDEZVOUS
        if self.watch.noted_row != self.row:
            self._note_members()


class NoChannel:
    """The channel of a communicator that is not watched: nothing waits."""

    def rendezvous(self, *call: object, depth: int = 0) -> None:
        """Return at once."""


class Rendezvous(Waiting):
    """Waiting for all members of a communicator to make the same call."""

    def __init__(self, channel: Channel, word: int, deadline_s: float, frame: FrameType) -> None:
        super().__init__(channel.watch, channel.members, deadline_s)
        self.channel, self.word, self.frame = channel, word, frame

    def announce(self) -> None:
        self.watch.post_place(self.frame)
        self.watch.slot.waiting_in = WaitingIn.COLLECTIVE

    def withdraw(self) -> bool:
        channel = self.channel
        words = channel.words
        words[channel.own] = self.word | GAVE_UP
        sleep(VISIBLE_S)
        for rank, member in enumerate(channel.members):
            if rank != channel.rank:
                theirs = words[channel.first + rank]
                is_later = (theirs ^ self.word) >> NUMBER_SHIFT and has_reached(theirs, self.word)
                if is_later or self.watch.recorder.slots[member].joined_word == self.word:
                    words[channel.own] = self.word
                    return False
        return True

    def mismatch(self) -> Mismatch | None:
        for rank in range(len(self.channel.members)):
            if (found := self.channel.mismatch_with(rank, self.word)) is not None:
                return found
        return None

    def is_settled(self) -> bool:
        channel, slots = self.channel, self.watch.recorder.slots
        return all(
            has_reached(word, self.word) for word in channel.words[channel.first : channel.last]
        ) and all(slots[member].waiting_in == WaitingIn.COLLECTIVE for member in self.members)

    def cannot_complete(self, patience_s: float) -> bool:
        return any(
            not self.channel.has_joined(rank, self.word) and self.watch.has_ended(member, patience_s)
            for rank, member in enumerate(self.members)
        )


class ChannelComm(CommWrapper):
    """A communicator with a channel; without one it is not watched."""

    _channel: Channel | NoChannel = NoChannel()
    deadline_s: float = DEADLINE_S

    def _renew_with(self, own: MPI.Intracomm, reset: Callable[[], object]) -> None:
        if isinstance(self._channel, Channel):
            self._channel.companions.append((own, WeakMethod(reset)))

    def _join(self, name: str, root: int = UNKNOWN, reduction: int = UNKNOWN, depth: int = 3) -> None:
        """Join a collective of which only the name, the root and the reduction are compared."""
        self._channel.rendezvous(
            OPERATIONS[name], self.deadline_s, root, UNKNOWN, UNKNOWN, reduction, depth=depth
        )
