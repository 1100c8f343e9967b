"""Waiting with an end: a rank learns why what it waits for does not come."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic, sleep
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from labkit.watch import errors
from labkit.watch.flight_recorder import layout, snapshot, stacks
from labkit.watch.flight_recorder.layout import EPOCH, RUNS, FlightRecorder
from labkit.watch.flight_recorder.opcodes import KINDS, UNKNOWN
from labkit.watch.flight_recorder.source import label, where
from labkit.watch.signature import REDUCTIONS

if TYPE_CHECKING:
    from labkit.watch.rendezvous import Channel

DEADLINE_S = 20.0
# A rank that has ended its cell and begins no other for so long does not come any more.
ENDED_S = 2.0
INTERRUPT_S = 1.0
SETTLE_S = 0.5  # for those under way to a call that others already disagree on: the report names all
LOOKS = range(100)  # at what the others have posted, before the clock is looked at
EAGER = range(1000)  # the same, a few tenths of a millisecond, where each rank has a core of its own
SPIN_S = 0.0005  # look again and again; a collective of small arrays takes a tenth of this
NOTED = 1000  # calls, of which the notes are kept
LOOK_S = 0.02  # between looks at what the others do
NAP_S = 0.001

_go_on: Callable[[], object] = int  # no call is cheaper
_yield: Callable[[], object] = getattr(os, "sched_yield", lambda: sleep(0))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Watch:
    """A process at the board: one for all communicators that are watched."""

    def __init__(self, recorder: FlightRecorder, rank: int, progress: Callable[[], object]) -> None:
        self.recorder = recorder
        self.rank = rank
        self.slot = recorder.slots[rank]
        self.progress = progress  # lets MPI work on messages under way
        # Ranks that share a core give it to each other at once.
        self.looks, self.pause = (LOOKS, _yield) if recorder.size > cores() else (EAGER, _go_on)
        self.channels: list[Channel] = []
        self.opened = 0  # rows taken as the rank 0 of a communicator
        self.free: list[int] = []
        self.noted: dict[tuple[int, ...], tuple[CodeType, int, bytes]] = {}
        self.calls = 0
        self.history = recorder.note_offset(rank)
        self.slot.pid = os.getpid()
        stacks.answer_into(recorder.stacks)
        self.slot.stacks = 1
        self.adopt()

    def adopt(self) -> None:
        """Take part in the epoch that is open now: earlier hangs are over."""
        self.epoch = self.recorder.head.epoch
        self.base = (self.epoch & 0xFFF) << EPOCH
        for channel in self.channels:
            channel.number = self.recorder.head.start

    def resume(self) -> None:
        """Take part again after a hang."""
        self.slot.waits = layout.AWAKE
        self.adopt()

    def begin_cell(self) -> None:
        """Note that a cell begins; it has a clean slate."""
        if self.recorder.head.epoch != self.epoch:
            self.adopt()
        self.slot.waits = layout.AWAKE
        self.slot.first = self.channels[0].number if self.channels else 0
        self.recorder.enter(self.rank, RUNS)

    def end_cell(self, state: int, error: str) -> None:
        """Note that the cell has returned or raised."""
        self.slot.waits = layout.AWAKE
        self.recorder.enter(self.rank, state, error)

    def new_row(self) -> int:
        """Return a row for a communicator of which this process is rank 0; -1 if all are taken."""
        if not self.free and self.opened == layout.ROWS:
            return -1
        if self.free:
            row = self.free.pop()
        else:
            row = self.rank * layout.ROWS + self.opened
            self.opened += 1
        size = self.recorder.size
        self.recorder.words[row * size : (row + 1) * size] = memoryview(bytes(8 * size)).cast("Q")
        return row

    def wait(self, over: Callable[[], bool], what: Waiting) -> None:
        """Return when `over()`; raise a HangError when it will not be, with what all ranks do.

        Time in which this process did not run (a laptop's sleep) does not count.
        """
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
                    or self.recorder.head.epoch != self.epoch
                ):
                    looked = waited
                    why = self._why(what, waited)
                    if why and what.leave():
                        what.keep = True
                        self._raise(why, what)
        except errors.HangError:
            raise
        except KeyboardInterrupt:
            if what.leave():
                self._abandon()
                raise errors.Interrupted(f"rank {self.rank} was interrupted while it waited.") from None
            # All have come: the others rely on us, and it does not take long.
        finally:
            if begun and not what.keep:
                self.slot.waits = layout.AWAKE

    def _why(self, what: Waiting, waited: float) -> str | None:
        """Return why there is no point in waiting on, if so."""
        if self.recorder.head.epoch != self.epoch:
            # Whoever interrupts one rank most often interrupts all: let it come, or it comes amid an error.
            if what.over_since < 0 and (self.recorder.report() or {}).get("why") == "interrupted":
                what.over_since = waited
            return None if 0 <= what.over_since <= waited < what.over_since + INTERRUPT_S else "over"
        if (fault := what.mismatch()) and (waited > SETTLE_S or not what.missing()):
            return fault
        if waited > what.deadline_s:
            return "late"
        patience = min(ENDED_S, what.deadline_s)
        if waited > patience and what.hopeless(patience):
            return "ended"
        return None

    def _raise(self, why: str, what: Waiting) -> None:
        recorder = self.recorder
        with recorder.locked():
            if recorder.head.epoch == self.epoch:
                recorder.publish(
                    snapshot.take_snapshot(recorder, why, what.deadline_s, what.members, self.rank)
                )
        report = recorder.report()
        assert report is not None
        raise errors.HangError(report, self.rank)

    def _abandon(self) -> None:
        """Open a new epoch, for this rank will not come to a call that it has announced."""
        with self.recorder.locked():
            if self.recorder.head.epoch == self.epoch:
                self.recorder.publish(
                    {"text": f"rank {self.rank} was interrupted while it waited.", "why": "interrupted"}
                )

    def ended(self, rank: int, patience: float) -> bool:
        """Tell whether a rank has ended its cell (while ours goes on), or is dead."""
        slot = self.recorder.slots[rank]
        if slot.state != RUNS:
            return bool(self.slot.state == RUNS and monotonic() - slot.since > patience)
        return not snapshot.alive(slot.pid)

    def note(self, key: tuple[int, ...], frame: FrameType) -> tuple[CodeType, int, bytes]:
        """Return a call's hash and its note, and keep them.

        `key`: operation, root, count, kind, reduction, the code's instruction and identity, and the row.
        """
        op, root, count, kind, reduction, _, _, row = key
        kind = KINDS.get(kind, UNKNOWN)
        reduction = REDUCTIONS.get(reduction, UNKNOWN)
        call = (row, op, root, count, kind, reduction)
        if len(self.noted) >= NOTED:
            self.noted.clear()
        code = frame.f_code  # kept, so that no other code can have its identity
        note = layout.CALL.pack(*call, frame.f_lineno, label(code.co_filename))
        self.noted[key] = made = code, hash(call) & layout.HASH, note
        return made

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

    def missing(self) -> bool:
        """Tell whether somebody may still be under way, or about to say at which line it waits."""
        return False

    def hopeless(self, patience: float) -> bool:
        """Tell whether somebody who is waited for has ended."""
        return False
