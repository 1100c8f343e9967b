"""Meeting on the board: how a rank learns that all others have come to the same call."""

from __future__ import annotations

import ctypes
import sys
from time import sleep
from types import FrameType

from mpi4py import MPI

from labkit.watch.flight_recorder import layout, snapshot
from labkit.watch.flight_recorder.layout import (
    EPOCH_SHIFT,
    GAVE_UP,
    HISTORY_CALLS,
    NUMBER_MASK,
    NUMBER_SHIFT,
    WaitingIn,
)
from labkit.watch.flight_recorder.opcodes import OPERATIONS, UNKNOWN
from labkit.watch.flight_recorder.report import Mismatch
from labkit.watch.wait import DEADLINE_S, Waiting, Watch

SEEN_S = 0.001  # what a rank writes is seen by the others in a thousandth of this
LOW, EPOCH_LOW = (1 << NUMBER_SHIFT) - 1, (1 << EPOCH_SHIFT) - 1
HALF = (NUMBER_MASK >> 1) << NUMBER_SHIFT

_note, _NOTE_BYTES = layout.NUMBERED_CALL.pack_into, ctypes.sizeof(layout.Call)


def reached(theirs: int, word: int) -> bool:
    """Tell whether a rank has come to a call of this word's number, whichever it is, or gone on from it."""
    ahead = ((theirs >> NUMBER_SHIFT) - (word >> NUMBER_SHIFT)) & NUMBER_MASK
    return theirs >> EPOCH_SHIFT == word >> EPOCH_SHIFT and ahead < NUMBER_MASK >> 1


class Channel:
    """A communicator's row on the board. `members`: ranks of the world, by rank in the communicator."""

    def __init__(self, watch: Watch, row: int, rank: int, members: list[int]) -> None:
        self.watch, self.row, self.rank, self.members = watch, row, rank, members
        recorder = watch.recorder
        self.memory, self.words, self.size = recorder.memory, recorder.words, len(members)
        self.first = row * recorder.size  # in words
        self.last = self.first + len(members)
        self.own = self.first + rank
        self.low = recorder.words_offset + 8 * self.first
        self.high = self.low + 8 * len(members)
        self.number = recorder.head.first_number
        watch.channels.append(self)

    def close(self) -> None:
        """Give the row back; called by every rank when all are done with the communicator."""
        self.watch.channels.remove(self)
        if self.rank == 0:
            self.watch.free.append(self.row)

    def meet(  # noqa: PLR0917  (every nanosecond counts)
        self, op: int, deadline_s: float, root: int, count: int, kind: int, reduction: int, depth: int = 2
    ) -> None:
        """Note this call, and return when all members have come to the same; raise if they will not.

        `kind`: NumPy's number of a type; `reduction`: the identity of an `MPI.Op`; -1 for none.
        """
        watch, memory = self.watch, self.memory
        self.number = number = (self.number + 1) & NUMBER_MASK
        frame = sys._getframe(depth)
        code = frame.f_code
        # What is called, and from where, is the same again and again: it is put together once.
        key = (op, root, count, kind, reduction, frame.f_lasti, id(code), self.row)
        _, digest, note = watch.noted.get(key) or watch.note(key, frame)
        place = watch.base | number << NUMBER_SHIFT
        word = place | digest
        calls = watch.calls
        watch.calls = calls + 1
        _note(memory, watch.history + calls % HISTORY_CALLS * _NOTE_BYTES, place >> NUMBER_SHIFT, note)
        slot = watch.slot
        slot.calls_noted = calls + 1
        self.words[self.own] = word
        low, high, first, last, words = self.low, self.high, self.first, self.last, self.words
        same = word.to_bytes(8, sys.byteorder) * self.size
        while True:
            for _ in watch.looks:
                if memory[low:high] == same or (min(words[first:last]) >= place and self.all_here(word)):
                    break
                watch.pause()
            else:
                watch.wait(lambda: self.all_here(word), Meeting(self, word, deadline_s, frame))
            # From here on others may rely on us. So we look again after setting `joined_word`, for one that
            # has given up; and who gives up says so, waits until that is seen, and looks at `joined_word`.
            slot.joined_word = word
            if memory[low:high] == same or self.all_here(word):
                return
            slot.joined_word = 0

    def all_here(self, word: int) -> bool:
        """Tell whether all have come to the call of this word, or gone on from it; not if calls differ."""
        lowest, highest = word & ~LOW, word | LOW  # of those in a call of this number
        behind, ahead = lowest - HALF, min(highest + HALF, word | EPOCH_LOW)  # numbers begin anew some day
        for rank, theirs in enumerate(self.words[self.first : self.last]):
            if theirs == word or highest < theirs < ahead:
                continue
            if behind < theirs < lowest or not self.came(rank, word):
                return False
        return True

    def came(self, rank: int, word: int) -> bool:
        """Tell whether a rank has come to the same call."""
        theirs = self.words[self.first + rank]
        if theirs == word:
            return True
        if (theirs ^ word) >> NUMBER_SHIFT:
            return reached(theirs, word)
        return not theirs & GAVE_UP and self.differs(rank, word) is None

    def differs(self, rank: int, word: int) -> Mismatch | None:
        """Return in what a rank's call of the same number differs from ours."""
        theirs = self.watch.recorder.words[self.first + rank]
        if theirs == word or (theirs ^ word) >> NUMBER_SHIFT or theirs & GAVE_UP:
            return None
        number = word >> NUMBER_SHIFT
        mine, other = self.call(self.rank, number), self.call(rank, number)
        if mine is None or other is None:
            return None
        return snapshot.mismatch(mine, other)

    def call(self, rank: int, number: int) -> layout.Call | None:
        """Return a rank's note of a call here."""
        for call in reversed(self.watch.recorder.last_calls(self.members[rank])):
            if call.row == self.row and call.number == number:
                return call
        return None


class NoChannel:
    """Of a communicator that is not watched: nobody meets."""

    def meet(self, *call: int | float, depth: int = 0) -> None:
        """Go on."""


class Meeting(Waiting):
    """Waiting for all members of a communicator to come to a call."""

    def __init__(self, channel: Channel, word: int, deadline_s: float, frame: FrameType) -> None:
        super().__init__(channel.watch, channel.members, deadline_s)
        self.channel, self.word, self.frame = channel, word, frame

    def begin(self) -> None:
        self.watch.post_where(self.frame)
        self.watch.slot.waiting_in = WaitingIn.COLLECTIVE

    def leave(self) -> bool:
        channel = self.channel
        recorder = self.watch.recorder
        recorder.words[channel.first + channel.rank] = self.word | GAVE_UP
        sleep(SEEN_S)
        for rank, member in enumerate(channel.members):
            if rank != channel.rank:
                theirs = recorder.words[channel.first + rank]
                gone_on = (theirs ^ self.word) >> NUMBER_SHIFT and reached(theirs, self.word)
                if gone_on or recorder.slots[member].joined_word == self.word:
                    recorder.words[channel.first + channel.rank] = self.word
                    return False
        return True

    def mismatch(self) -> Mismatch | None:
        ranks = range(len(self.channel.members))
        return next(filter(None, (self.channel.differs(rank, self.word) for rank in ranks)), None)

    def missing(self) -> bool:
        channel = self.channel
        come = (reached(word, self.word) for word in channel.words[channel.first : channel.last])
        waits = (
            self.watch.recorder.slots[member].waiting_in == WaitingIn.COLLECTIVE for member in self.members
        )
        return not (all(come) and all(waits))

    def hopeless(self, patience: float) -> bool:
        return any(
            not self.channel.came(rank, self.word) and self.watch.ended(member, patience)
            for rank, member in enumerate(self.members)
        )


class Watched(MPI.Intracomm):
    """A communicator with a channel, or with none: then it is not watched."""

    _channel: Channel | NoChannel = NoChannel()
    deadline_s: float = DEADLINE_S

    def _bare(self, op: str, root: int = UNKNOWN, how: int = UNKNOWN) -> None:
        self._channel.meet(OPERATIONS[op], self.deadline_s, root, UNKNOWN, UNKNOWN, how, depth=3)
