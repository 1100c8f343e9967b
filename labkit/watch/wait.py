"""Waiting with an end: a rank learns why what it waits for does not come."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic, sleep
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from labkit.processes import alive
from labkit.watch import errors
from labkit.watch.flight_recorder import layout, snapshot, stacks
from labkit.watch.flight_recorder.layout import EPOCH_SHIFT, CellState, FlightRecorder, WaitingIn
from labkit.watch.flight_recorder.opcodes import DTYPES, UNKNOWN
from labkit.watch.flight_recorder.report import Mismatch, Reason, Report
from labkit.watch.flight_recorder.source import file_label, student_line_of
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
        self.history = recorder.history_offset(rank)
        self.slot.pid = os.getpid()
        stacks.write_stack_on_signal(recorder.stacks)
        self.slot.writes_stack = 1
        self.adopt()

    def adopt(self) -> None:
        """Take part in the epoch that is open now: earlier hangs are over."""
        self.epoch = self.recorder.head.epoch
        self.base = (self.epoch & 0xFFF) << EPOCH_SHIFT
        for channel in self.channels:
            channel.number = self.recorder.head.first_number

    def resume(self) -> None:
        """Take part again after a hang."""
        self.slot.waiting_in = WaitingIn.NOTHING
        self.adopt()

    def begin_cell(self) -> None:
        """Note that a cell begins; it has a clean slate."""
        if self.recorder.head.epoch != self.epoch:
            self.adopt()
        self.slot.waiting_in = WaitingIn.NOTHING
        self.slot.calls_before_cell = self.channels[0].number if self.channels else 0
        self.recorder.set_cell_state(self.rank, CellState.RUNNING)

    def end_cell(self, state: CellState, error: str) -> None:
        """Note that the cell has returned or raised."""
        self.slot.waiting_in = WaitingIn.NOTHING
        self.recorder.set_cell_state(self.rank, state, error)

    def new_row(self) -> int:
        """Return a row for a communicator of which this process is rank 0; -1 if all are taken."""
        if not self.free and self.opened == layout.ROWS_PER_RANK:
            return -1
        if self.free:
            row = self.free.pop()
        else:
            row = self.rank * layout.ROWS_PER_RANK + self.opened
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
                self.slot.waiting_in = WaitingIn.NOTHING

    def _why(self, what: Waiting, waited: float) -> Reason | Mismatch | None:
        """Return why there is no point in waiting on, if so."""
        if self.recorder.head.epoch != self.epoch:
            # Whoever interrupts one rank most often interrupts all: let it come, or it comes amid an error.
            report = self.recorder.last_report()
            assert report is not None
            if what.over_since < 0 and report.reason is Reason.INTERRUPTED:
                what.over_since = waited
            return None if 0 <= what.over_since <= waited < what.over_since + INTERRUPT_S else report.reason
        if (fault := what.mismatch()) and (waited > SETTLE_S or not what.missing()):
            return fault
        if waited > what.deadline_s:
            return Reason.TIMED_OUT
        patience = min(ENDED_S, what.deadline_s)
        if waited > patience and what.hopeless(patience):
            return Reason.RANK_ENDED
        return None

    def _raise(self, why: Reason | Mismatch, what: Waiting) -> None:
        recorder = self.recorder
        with recorder.locked():
            if recorder.head.epoch == self.epoch:
                recorder.publish(
                    snapshot.take_snapshot(recorder, why, what.deadline_s, what.members, self.rank)
                )
        report = recorder.last_report()
        assert report is not None
        raise errors.HangError(report, self.rank)

    def _abandon(self) -> None:
        """Open a new epoch, for this rank will not come to a call that it has announced."""
        with self.recorder.locked():
            if self.recorder.head.epoch == self.epoch:
                self.recorder.publish(Report(Reason.INTERRUPTED, 0.0, reporter=self.rank))

    def ended(self, rank: int, patience: float) -> bool:
        """Tell whether a rank has ended its cell (while ours goes on), or is dead."""
        slot = self.recorder.slots[rank]
        if slot.cell_state != CellState.RUNNING:
            return bool(
                self.slot.cell_state == CellState.RUNNING and monotonic() - slot.cell_state_since_s > patience
            )
        return not alive(slot.pid)

    def note(self, key: tuple[int, ...], frame: FrameType) -> tuple[CodeType, int, bytes]:
        """Return a call's hash and its note, and keep them.

        `key`: operation, root, count, kind, reduction, the code's instruction and identity, and the row.
        """
        op, root, count, kind, reduction, _, _, row = key
        kind = DTYPES.get(kind, UNKNOWN)
        reduction = REDUCTIONS.get(reduction, UNKNOWN)
        call = (row, op, root, count, kind, reduction)
        if len(self.noted) >= NOTED:
            self.noted.clear()
        code = frame.f_code  # kept, so that no other code can have its identity
        note = layout.CALL_BODY.pack(*call, frame.f_lineno, file_label(code.co_filename))
        self.noted[key] = made = code, hash(call) & layout.HASH_MASK, note
        return made

    def post_where(self, frame: FrameType | None) -> None:
        """Note the student's line that we wait at."""
        self.slot.place = layout.fit(student_line_of(frame), layout.PLACE_BYTES)


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

    def mismatch(self) -> Mismatch | None:
        """Return what is wrong with those that have come."""
        return None

    def missing(self) -> bool:
        """Tell whether somebody may still be under way, or about to say at which line it waits."""
        return False

    def hopeless(self, patience: float) -> bool:
        """Tell whether somebody who is waited for has ended."""
        return False
