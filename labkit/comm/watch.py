"""Meeting on the board: how a rank learns that all others have come to the same call, or what they do."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from time import monotonic, sleep
from types import FrameType

from labkit.comm import board as layout
from labkit.comm import hang, stacks
from labkit.comm.board import (
    EPOCH,
    GAVE_UP,
    HASH,
    HISTORY,
    IN_COLLECTIVE,
    IN_MESSAGE,
    NUMBER,
    NUMBERS,
    RUNS,
    Board,
)
from labkit.comm.places import label, where

DEADLINE_S = 20.0
# A rank that has ended its cell and begins no other for so long does not come any more.
ENDED_S = 2.0
INTERRUPT_S = 1.0
EAGER = 1000  # looks, a few tenths of a millisecond, before a rank with a core of its own lets others run
SPIN_S = 0.0005  # look again and again; a collective of small arrays takes a tenth of this
LOOK_S = 0.02  # between looks at what the others do
NAP_S = 0.001

_note, _NOTE_BYTES = layout.NOTE.pack_into, layout.NOTE.size
_yield = getattr(os, "sched_yield", lambda: sleep(0))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Watch:
    """A process at the board: one for all communicators that are watched."""

    def __init__(self, board: Board, rank: int, progress: Callable[[], object]) -> None:
        self.board = board
        self.rank = rank
        self.slot = board.slots[rank]
        self.progress = progress  # lets MPI work on messages under way
        # Ranks that share a core give it to each other at once.
        self.eager = 0 if board.size > cores() else EAGER
        self.channels: list[Channel] = []
        self.opened = 0  # rows taken as the rank 0 of a communicator
        self.free: list[int] = []
        self.fence = threading.Lock()
        self.labels: dict[str, bytes] = {}
        self.calls = 0
        self.history = board.note_offset(rank)
        self.slot.pid = os.getpid()
        stacks.answer_into(board.stacks)
        self.slot.stacks = 1
        self.adopt()

    def adopt(self) -> None:
        """Take part in the epoch that is open now: earlier hangs are over."""
        self.epoch = self.board.head.epoch
        self.base = (self.epoch & 0xFFF) << EPOCH
        for channel in self.channels:
            channel.number = self.board.head.start

    def resume(self) -> None:
        """Take part again after a hang."""
        self.slot.waits = layout.AWAKE
        self.adopt()

    def begin_cell(self) -> None:
        """Note that a cell begins; it has a clean slate."""
        if self.board.head.epoch != self.epoch:
            self.adopt()
        self.slot.waits = layout.AWAKE
        self.slot.first = self.channels[0].number if self.channels else 0
        self.board.enter(self.rank, RUNS)

    def end_cell(self, state: int, error: str) -> None:
        """Note that the cell has returned or raised."""
        self.slot.waits = layout.AWAKE
        self.board.enter(self.rank, state, error)

    def new_row(self) -> int:
        """Return a row for a communicator of which this process is rank 0; -1 if all are taken."""
        if not self.free and self.opened == layout.ROWS:
            return -1
        if self.free:
            row = self.free.pop()
        else:
            row = self.rank * layout.ROWS + self.opened
            self.opened += 1
        size = self.board.size
        self.board.words[row * size : (row + 1) * size] = memoryview(bytes(8 * size)).cast("Q")
        return row

    def wait(self, over: Callable[[], bool], what: Waiting) -> None:
        """Return when `over()`; raise a HangError when it will not be, with what all ranks do.

        Time in which this process did not run (a laptop's sleep) does not count.
        """
        for _ in range(self.eager):
            if over():
                return
        waited, last, looked = 0.0, monotonic(), 0.0
        begun = False
        try:
            while not over():
                now = monotonic()
                waited += min(now - last, 0.1)
                last = now
                if waited < SPIN_S:
                    _yield()
                    continue
                if not begun:
                    begun = True
                    what.begin()
                    looked = waited
                self.progress()
                sleep(min(NAP_S, waited / 20))
                if (
                    waited - looked > LOOK_S
                    or waited > what.deadline_s
                    or self.board.head.epoch != self.epoch
                ):
                    looked = waited
                    why = self._why(what, waited)
                    if why and what.leave():
                        what.keep = True
                        self._raise(why, what)
        except hang.HangError:
            raise
        except KeyboardInterrupt:
            if what.leave():
                self._abandon()
                raise hang.Interrupted(f"rank {self.rank} was interrupted while it waited.") from None
            # All have come: the others rely on us, and it does not take long.
        finally:
            if begun and not what.keep:
                self.slot.waits = layout.AWAKE

    def _why(self, what: Waiting, waited: float) -> str | None:
        """Return why there is no point in waiting on, if so."""
        if self.board.head.epoch != self.epoch:
            # Whoever interrupts one rank most often interrupts all: let it come, or it comes amid an error.
            if what.over_since < 0 and (self.board.report() or {}).get("why") == "interrupted":
                what.over_since = waited
            return None if 0 <= what.over_since <= waited < what.over_since + INTERRUPT_S else "over"
        if fault := what.mismatch():
            return fault
        if waited > what.deadline_s:
            return "late"
        patience = min(ENDED_S, what.deadline_s)
        if waited > patience and what.hopeless(patience):
            return "ended"
        return None

    def _raise(self, why: str, what: Waiting) -> None:
        board = self.board
        with board.locked():
            if board.head.epoch == self.epoch:
                board.publish(hang.look(board, why, what.deadline_s, what.members, self.rank))
        report = board.report()
        assert report is not None
        raise hang.HangError(report, self.rank)

    def _abandon(self) -> None:
        """Open a new epoch, for this rank will not come to a call that it has announced."""
        with self.board.locked():
            if self.board.head.epoch == self.epoch:
                self.board.publish(
                    {"text": f"rank {self.rank} was interrupted while it waited.", "why": "interrupted"}
                )

    def ended(self, rank: int, patience: float) -> bool:
        """Tell whether a rank has ended its cell (while ours goes on), or is dead."""
        slot = self.board.slots[rank]
        if slot.state != RUNS:
            return bool(self.slot.state == RUNS and monotonic() - slot.since > patience)
        return not hang.alive(slot.pid)

    def name(self, file: str) -> bytes:
        """Return a file's name as notes have it."""
        self.labels[file] = short = label(file)
        return short

    def post_where(self, frame: FrameType | None) -> None:
        """Note the student's line that we wait at."""
        self.slot.where = layout.fit(where(frame), 256)


class Waiting:
    """What a rank waits for: how to say so, and how to leave it."""

    over_since = -1.0  # when, if so, another rank was seen to have been interrupted
    keep = False  # what the slot says, for others to read: it ended in an error

    def __init__(self, watch: Watch, members: list[int], deadline_s: float) -> None:
        self.watch, self.members, self.deadline_s = watch, members, deadline_s

    def begin(self) -> None:
        """Note on the board that we wait."""

    def leave(self) -> bool:
        """Give up; False if it is too late for that, since all have come."""
        return True

    def mismatch(self) -> str | None:
        """Return what is wrong with those that have come."""
        return None

    def hopeless(self, patience: float) -> bool:
        """Tell whether somebody who is waited for has ended."""
        return False


class Channel:
    """A communicator's row on the board. `members`: ranks of the world, by rank in the communicator."""

    def __init__(self, watch: Watch, row: int, rank: int, members: list[int]) -> None:
        self.watch, self.row, self.rank, self.members = watch, row, rank, members
        board = watch.board
        self.memory, self.words, self.size = board.memory, board.words, len(members)
        self.first = row * board.size  # in words
        self.own = self.first + rank
        self.low = board.rows + 8 * self.first
        self.high = self.low + 8 * len(members)
        self.number = board.head.start
        watch.channels.append(self)

    def close(self) -> None:
        """Give the row back; called by every rank when all are done with the communicator."""
        self.watch.channels.remove(self)
        if self.rank == 0:
            self.watch.free.append(self.row)

    def meet(  # noqa: PLR0917  (every nanosecond counts)
        self, op: int, deadline_s: float, root: int, count: int, kind: int, reduction: int, depth: int = 2
    ) -> None:
        """Note this call, and return when all members have come to the same; raise if they will not."""
        watch = self.watch
        memory, slot = self.memory, watch.slot
        self.number = number = (self.number + 1) & NUMBERS
        place = watch.base | number << NUMBER
        word = place | hash((self.row, op, root, count, kind, reduction)) & HASH
        frame = sys._getframe(depth)
        file = frame.f_code.co_filename
        calls = watch.calls
        watch.calls = calls + 1
        _note(
            memory,
            watch.history + calls % HISTORY * _NOTE_BYTES,
            *(self.row, place >> NUMBER, op, root, count, kind, reduction, frame.f_lineno),
            watch.labels.get(file) or watch.name(file),
        )
        slot.calls = calls + 1
        self.words[self.own] = word
        low, high = self.low, self.high
        same = word.to_bytes(8, sys.byteorder) * self.size
        while True:
            if memory[low:high] != same:
                here = self.looker(word, same)
                if not here():
                    watch.wait(here, Meeting(self, word, deadline_s, frame))
            # From here on others may rely on us. So who gives up looks at `going` after saying so, and we
            # look for such a one after setting it: of the two, one sees the other.
            slot.going = word
            with watch.fence:
                pass
            if memory[low:high] == same or self.all_here(word):
                return
            slot.going = 0

    def looker(self, word: int, same: bytes) -> Callable[[], bool]:
        """Return what tells whether all have come to this call; it costs little while nothing changes."""
        memory, low, high = self.memory, self.low, self.high
        seen = b""

        def here() -> bool:
            nonlocal seen
            now = memory[low:high]
            if now == seen:
                return False
            seen = now
            return now == same or self.all_here(word)

        return here

    def all_here(self, word: int) -> bool:
        """Tell whether all have come to the call of this word, or gone on from it; not if calls differ."""
        return all(self.came(rank, word) for rank in range(len(self.members)))

    def came(self, rank: int, word: int) -> bool:
        """Tell whether a rank has come to the same call."""
        theirs = self.watch.board.words[self.first + rank]
        if theirs == word:
            return True
        if theirs >> EPOCH != word >> EPOCH:
            return False
        ahead = ((theirs >> NUMBER) - (word >> NUMBER)) & NUMBERS
        if ahead == 0:
            return not theirs & GAVE_UP and self.differs(rank, word) is None
        return ahead < NUMBERS >> 1

    def differs(self, rank: int, word: int) -> str | None:
        """Return in what a rank's call of the same number differs from ours."""
        theirs = self.watch.board.words[self.first + rank]
        if theirs == word or (theirs ^ word) >> NUMBER or theirs & GAVE_UP:
            return None
        number = word >> NUMBER
        mine, other = self.call(self.rank, number), self.call(rank, number)
        if mine is None or other is None:
            return None
        return hang.difference(mine, other)

    def call(self, rank: int, number: int) -> layout.Call | None:
        """Return a rank's note of a call here."""
        for call in reversed(self.watch.board.last_calls(self.members[rank])):
            if call.channel == self.row and call.number == number:
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
        self.watch.slot.waits = IN_COLLECTIVE

    def leave(self) -> bool:
        channel = self.channel
        board = self.watch.board
        board.words[channel.first + channel.rank] = self.word | GAVE_UP
        with self.watch.fence:
            pass
        for rank, member in enumerate(channel.members):
            if rank != channel.rank:
                theirs = board.words[channel.first + rank]
                ahead = ((theirs >> NUMBER) - (self.word >> NUMBER)) & NUMBERS
                gone_on = theirs >> EPOCH == self.word >> EPOCH and 0 < ahead < NUMBERS >> 1
                if gone_on or board.slots[member].going == self.word:
                    board.words[channel.first + channel.rank] = self.word
                    return False
        return True

    def mismatch(self) -> str | None:
        ranks = range(len(self.channel.members))
        return next(filter(None, (self.channel.differs(rank, self.word) for rank in ranks)), None)

    def hopeless(self, patience: float) -> bool:
        return any(
            not self.channel.came(rank, self.word) and self.watch.ended(member, patience)
            for rank, member in enumerate(self.members)
        )


class Message(Waiting):
    """Waiting for a message to come, or to be taken; `peer` is a rank of the world, or -1 for any."""

    def __init__(  # noqa: PLR0917
        self,
        watch: Watch,
        members: list[int],
        deadline_s: float,
        op: int,
        peer: int,
        tag: int,
        frame: FrameType,
    ) -> None:
        super().__init__(watch, members, deadline_s)
        self.op, self.peer, self.tag, self.frame = op, peer, tag, frame

    def begin(self) -> None:
        slot = self.watch.slot
        self.watch.post_where(self.frame)
        slot.op, slot.peer, slot.tag = self.op, self.peer, self.tag
        slot.waits = IN_MESSAGE

    def hopeless(self, patience: float) -> bool:
        peers = [self.peer] if self.peer >= 0 else [rank for rank in self.members if rank != self.watch.rank]
        return bool(peers) and all(self.watch.ended(peer, patience) for peer in peers)
