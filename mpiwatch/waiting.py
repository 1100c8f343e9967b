"""Waiting for other ranks with a deadline: a rank learns why another one does not come.

A wait starts as a loop that polls MPI and yields its core to any rank that needs it. Most messages arrive
during this loop, which rarely reads the clock. A rank that has waited for much longer than a message takes
notes in the flight recorder what it waits for, and ends with a hang report if that cannot come. In a process
that is not watched, it goes on polling until the deadline.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from types import CodeType, FrameType
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

from mpi4py import MPI

from mpiwatch import deadlock, errors, under_way
from mpiwatch.machines import Server
from mpiwatch.message import REDUCTIONS
from mpiwatch.opcodes import DTYPES, OPERATIONS, SCHEDULES, UNKNOWN
from mpiwatch.processes import cores
from mpiwatch.recorder import (
    CALL_BODY,
    EPOCH_SHIFT,
    HASH_MASK,
    NAME_BYTES,
    ORIGIN_BYTES,
    PLACE_BYTES,
    PURPOSE_BYTES,
    ROWS_PER_RANK,
    Call,
    CellState,
    FlightRecorder,
    ReportRequest,
    WaitingIn,
    fit,
)
from mpiwatch.report import Mismatch, Reason
from mpiwatch.snapshot import is_in_mpi_call, publish
from mpiwatch.source import file_label, student_line_of, write_stack_on_signal
from mpiwatch.wording import ranks_phrase

DEADLINE_S = 20.0
HAND_OVER_S = 0.05  # much longer than a segment takes between two ranks of one machine

yield_core: Callable[[], object] = getattr(os, "sched_yield", lambda: sleep(0))

ENDED_S = 2.0  # a rank that has ended its cell, and starts no other for so long, does not join any more
INTERRUPT_S = 1.0  # how long a rank waits for its own interrupt after another rank was interrupted
SETTLE_S = 0.5  # how long a mismatch waits for ranks that are on their way: the report then shows them, too
POLLS = range(100)  # of the other ranks' words, before the clock is read
POLLS_ON_OWN_CORE = range(1000)  # the same, a few tenths of a millisecond, where each rank has its own core
SPIN_S = 0.0005  # wait without sleeping; a collective of small arrays takes a tenth of this
ABANDON_S = 2.0  # how long an interrupted rank waits for the hub
INSPECT_S = 0.02  # between two inspections of what the other ranks do
NAP_S = 0.001
NOTES_KEPT = 1000
# Before it is certain that no message is on its way: a poll moves at least one, and each rank can have only
# some hundred of those that a finished Send has left with MPI.
POLLS_WHILE_STUCK = 300


class Pending(NamedTuple):
    """What this rank waits for: messages of `operation` on `comm`.

    `receives` lists the ranks of `comm` whose messages have not arrived, `sends` the ranks that have not
    received ours. Both are empty in a collective of the MPI library, which hides which rank is missing.
    """

    comm: MPI.Intracomm
    operation: str
    receives: list[int]
    sends: list[int]

    def __str__(self) -> str:
        """Return a phrase to follow "waited for"."""
        parts = []
        if self.receives:
            parts.append(f"a message from {ranks_phrase(sorted(set(self.receives)))}")
        if self.sends:
            parts.append(f"{ranks_phrase(sorted(set(self.sends)))} to receive a message")
        return " and ".join(parts) or "the other ranks"


Over = Callable[[], bool]
watched: Watch | None = None  # of this process, once its world is watched


def attempt() -> int:
    """Return a number that is the same on all ranks and changes after each hang that is reported.

    Schedules add it to their tag, so that messages left over from a hang are never received.
    """
    return 0 if watched is None else watched.epoch


def wait(over: Over, pending: Callable[[], Pending]) -> None:
    """Return when `over()` is True; raise an error that names the missing rank if that takes too long.

    It is a HangError in a watched process, else a TimeoutError after DEADLINE_S. `pending` is called only for
    the report. Time in which this process did not run (a laptop's sleep) does not count.
    """
    waited, last = 0.0, monotonic()
    while waited < DEADLINE_S:
        for _ in POLLS:
            if over():
                return
            yield_core()
        now = monotonic()
        waited += min(now - last, 1.0)
        last = now
        if waited > HAND_OVER_S and watched is not None:
            watched.wait(over, schedule_wait(watched, pending(), sys._getframe(1)))
            return
    missing = pending()
    raise TimeoutError(
        f"rank {missing.comm.rank} waited {DEADLINE_S:g} s in {missing.operation} for {missing}. Expected "
        f"the same call on all {missing.comm.size} ranks: a rank never made it, or gave another schedule or "
        "array size. Messages may still be under way on this communicator: make a new one before you go on."
    )


def sleeping_barrier(comm: MPI.Intracomm) -> None:
    """Wait until all ranks have called this, asleep between polls (1 ms). Collective.

    MPI's own Barrier polls as fast as it can. That is right for microseconds, but takes the core from a rank
    that works for seconds, say rank 0 while it loads a data set.
    """
    request = comm.Ibarrier()
    while not request.Test():
        sleep(0.001)


_do_nothing: Callable[[], object] = int  # no call is cheaper

Key = tuple[int | str, int, int, int, int, int, int, int]


class Watch:
    """The part of this process in the flight recorder: one for all its watched communicators."""

    def __init__(
        self,
        recorder: FlightRecorder,
        rank: int,
        progress: Callable[[], object],
        machines: Sequence[int] | None = None,
    ) -> None:
        self.recorder = recorder
        self.machines = machines or [0] * recorder.size  # of the ranks
        self.server: Server | None = None  # only in the first rank of each machine, if there are several
        self.noted_row = -1  # the row whose members are in the slot
        self.rank = rank
        self.slot = recorder.slots[rank]
        self.progress = progress  # lets MPI move messages that are on their way
        # Ranks that share a core give it to each other at once.
        shared = recorder.size > cores()
        self.before_error: Callable[[], object] = _do_nothing  # in a program, it does not return
        self.polls, self.pause = (POLLS, yield_core) if shared else (POLLS_ON_OWN_CORE, _do_nothing)
        self.waits = True  # whether a collective begins only when all ranks have called it
        self.deadline_s: Callable[[], float] = lambda: DEADLINE_S  # the world's
        self.patience = 1.0  # how many deadlines to wait for a rank that computes
        self.waiting: dict[int, Waiting] = {}  # what threads of this process wait for
        self.posted: Waiting | None = None  # the one of these in the slot
        self.callers: set[int] = {threading.main_thread().ident or 0}  # threads that have waited in MPI
        self.strangers = _threads()  # threads of neither the program nor the cell
        self.channels: list[Any] = []  # of class Channel, which imports this module
        self.rows_opened = 0  # as rank 0 of a communicator
        self.free_rows: list[int] = []
        self.notes: dict[Key, tuple[CodeType, int, bytes]] = {}
        self.calls = self.message_waits = 0
        self.history = recorder.history_offset(rank)
        self.slot.pid = os.getpid()
        write_stack_on_signal(recorder.stacks)
        self.slot.writes_stack = 1
        atexit.register(self.end_program)
        os.register_at_fork(after_in_child=self._end_in_child)
        self.join_epoch()

    def _end_in_child(self) -> None:
        """Let a forked child, which has this rank's memory but no MPI of its own, raise errors."""

        def refuse(*_: object, **__: object) -> NoReturn:
            raise errors.ForkedError(self.rank)

        self.wait = self.check_process = refuse  # type: ignore[method-assign]
        for channel in self.channels:
            channel.begin_collective = refuse

    def check_process(self) -> None:
        """Raise ForkedError in a forked child."""

    def join_epoch(self) -> None:
        """Take part in the current epoch: earlier hangs are over."""
        self.epoch = self.recorder.head.epoch
        self.base = (self.epoch & 0xFFF) << EPOCH_SHIFT
        for channel in self.channels:
            channel.number = self.recorder.head.first_number

    def resume(self) -> None:
        """Take part again after a hang."""
        self.slot.waiting_in = WaitingIn.NOTHING
        self.join_epoch()

    def begin_cell(self) -> None:
        """Note that a cell begins; hangs of earlier cells are over."""
        self.strangers = _threads()
        if self.recorder.head.epoch != self.epoch:
            self.join_epoch()
        self.slot.waiting_in = WaitingIn.NOTHING
        self.slot.calls_before_cell = self.channels[0].number if self.channels else 0
        self.recorder.set_cell_state(self.rank, CellState.RUNNING)

    def end_program(self) -> None:
        """Note that this process is ending. In MPI_Finalize it can no longer write its stack."""
        if os.getpid() == self.slot.pid:  # not a forked child
            self.slot.writes_stack = 0
            self.slot.waiting_in = WaitingIn.NOTHING
            if self.before_error is _do_nothing or self.slot.cell_state != CellState.RAISED:
                self.recorder.set_cell_state(self.rank, CellState.EXITED)

    def end_cell(self, state: CellState, error: str) -> None:
        """Note that the cell has returned or raised."""
        if os.getpid() != self.slot.pid:
            return  # a forked child
        self.slot.waiting_in = WaitingIn.NOTHING
        self.recorder.set_cell_state(self.rank, state, error)

    def new_row(self) -> int:
        """Return a row for a communicator of which this process is rank 0; -1 if all are in use."""
        if not self.free_rows and self.rows_opened == ROWS_PER_RANK:
            return -1
        if self.free_rows:
            row = self.free_rows.pop()
        else:
            row = self.rank * ROWS_PER_RANK + self.rows_opened
            self.rows_opened += 1
        size = self.recorder.size
        self.recorder.words[row * size : (row + 1) * size] = memoryview(bytes(8 * size)).cast("Q")
        return row

    def wait(self, is_done: Callable[[], bool], waiting: Waiting) -> None:
        """Return when `is_done()`; raise HangError, with a report on all ranks, if that cannot happen.

        Time in which this process did not run (a laptop's sleep) does not count.
        """
        waited, last, inspected = 0.0, monotonic(), 0.0
        announced, thread = False, threading.get_ident()
        try:
            while not is_done():
                now = monotonic()
                waited += min(now - last, 0.1)
                last = now
                if waited < SPIN_S:
                    yield_core()
                    continue
                if not announced:
                    announced = True
                    waiting.since_s = now
                    self.waiting[thread] = waiting
                    self.callers.add(thread)
                    self._post(waiting)
                    inspected = waited
                self.progress()
                waiting.polls += 1
                sleep(min(NAP_S, waited / 20))
                if (
                    waited - inspected > INSPECT_S
                    or waited > waiting.deadline_s
                    or self.recorder.head.epoch != self.epoch
                ):
                    inspected = waited
                    self._post(waiting)
                    reason = self._reason_to_stop(waiting, waited)
                    if reason and waiting.withdraw():
                        waiting.is_over = True
                        self._raise(reason, waiting)
        except KeyboardInterrupt:
            if waiting.withdraw():
                self._abandon()
                raise errors.Interrupted(f"rank {self.rank} was interrupted while it waited.") from None
            # All ranks have joined and rely on this one: go on, it does not take long.
        finally:
            if announced:
                del self.waiting[thread]
                self.withdraw(waiting)

    def look(self, waiting: Waiting, waited: float) -> None:
        """Note that this rank waits, although it polls itself; raise HangError if that cannot end."""
        self._post(waiting)
        if reason := self._reason_to_stop(waiting, waited):
            waiting.is_over = True
            try:
                self._raise(reason, waiting)
            finally:
                self.withdraw(waiting)

    def _post(self, waiting: Waiting) -> None:
        """Note in the slot that this rank waits, if all of its threads do that use MPI."""
        if not self.all_threads_wait():
            self.withdraw(waiting)
        elif self.posted is None:
            self.posted = waiting
            self.slot.waiting_since_s = waiting.since_s
            waiting.announce()

    def withdraw(self, waiting: Waiting) -> None:
        """Note that this rank does not wait any more; keep what an error is about for the others."""
        if self.posted is waiting:
            self.posted = None
            self.slot.waiting_since_s = 0.0
            self.slot.waiting_in = self.slot.waiting_in if waiting.is_over else WaitingIn.NOTHING

    def all_threads_wait(self) -> bool:
        """Tell whether no thread of this process but the current one may make an MPI call soon.

        Those that have never waited in MPI do not count, except for the main thread.
        """
        others = self.callers - {threading.get_ident()} - self.waiting.keys()
        if not others:
            return True
        frames = sys._current_frames()
        self.callers -= others - frames.keys()  # they have ended
        main = threading.main_thread().ident
        return all(
            frames[thread].f_code.co_filename == threading.__file__  # as in `join`
            or (thread == main and is_in_mpi_call(self.slot, monotonic()))
            for thread in others & frames.keys()
        )

    def is_threaded(self) -> bool:
        """Tell whether the program has other threads than the current one, which may call MPI."""
        return bool(_threads() - self.strangers - {threading.get_ident()})

    def _reason_to_stop(self, waiting: Waiting, waited: float) -> Reason | Mismatch | None:
        """Return why waiting any longer is of no use, if it is not."""
        if self.recorder.head.epoch != self.epoch:
            report = self.recorder.last_report()
            assert report is not None
            # An interrupt mostly reaches all ranks. Wait for it here, or it comes while an error is handled.
            if waiting.interrupted_since_s < 0 and report.reason is Reason.INTERRUPTED:
                waiting.interrupted_since_s = waited
            since = waiting.interrupted_since_s
            return None if 0 <= since <= waited < since + INTERRUPT_S else report.reason
        if (found := waiting.mismatch()) and (waited > SETTLE_S or waiting.is_settled()):
            return found
        return self._reason_to_report(waiting, waited) if self.posted is waiting else None

    def _reason_to_report(self, waiting: Waiting, waited: float) -> Reason | None:
        """Return why the wait cannot end, if it cannot; all threads of this process wait."""
        if waiting.is_stuck():
            return Reason.CIRCLE
        patience_s = min(ENDED_S, waiting.deadline_s)
        if waited > patience_s and waiting.cannot_complete(patience_s):
            return Reason.RANK_ENDED
        if waited > waiting.deadline_s:
            limit_s = waiting.deadline_s * (self.patience if self._a_rank_computes(waiting.deadline_s) else 1)
            return Reason.TIMED_OUT if waited > limit_s else None
        return None

    def _a_rank_computes(self, deadline_s: float) -> bool:
        """Return whether another rank has run its own code within the deadline, so that it may still join."""
        now = monotonic()
        for rank, slot in enumerate(self.recorder.slots):
            since_s = slot.waiting_since_s or (slot.mpi_call_since_s if is_in_mpi_call(slot, now) else now)
            is_busy = slot.cell_state == CellState.RUNNING and now - since_s < deadline_s
            if rank != self.rank and is_busy and self.recorder.is_alive(rank):
                return True
        return False

    def _raise(self, reason: Reason | Mismatch, waiting: Waiting) -> None:
        self.publish(ReportRequest(reason, waiting.deadline_s, waiting.members, self.rank))
        self.raise_report()

    def raise_report(self) -> NoReturn:
        """Raise the last report."""
        self.before_error()
        report = self.recorder.last_report()
        assert report is not None
        raise errors.HangError(report, self.rank)

    def check_epoch(self) -> None:
        """Raise HangError if a rank has reported a hang: the others do not make this rank's next call."""
        if self.recorder.head.epoch != self.epoch:
            self.raise_report()

    def _abandon(self) -> None:
        """Open a new epoch: this rank does not make the call that it has announced."""
        self.publish(ReportRequest(Reason.INTERRUPTED, 0.0, [self.rank], self.rank), ABANDON_S)

    def publish(self, request: ReportRequest, patience_s: float = float("inf")) -> None:
        """Publish a report unless another rank has done so; see mpiwatch.snapshot."""
        self.noted_row = -1  # the request overwrites the members in the slot
        publish(self.recorder, self.rank, self.epoch, request, self.progress, patience_s)

    def has_ended(self, rank: int, patience_s: float) -> bool:
        """Tell whether a rank has ended its cell (while ours goes on), or is dead."""
        slot = self.recorder.slots[rank]
        if slot.cell_state != CellState.RUNNING:
            runs = self.slot.cell_state == CellState.RUNNING
            return bool(runs and monotonic() - slot.cell_state_since_s > patience_s)
        return not self.recorder.is_alive(rank)

    def note(self, key: Key, frame: FrameType) -> tuple[CodeType, int, bytes]:
        """Return a call's hash and its note, and keep them.

        `key`: operation, root, count, dtype, reduction, the code's instruction and identity, and the row.
        """
        operation, root, count, dtype, reduction, _, _, row = key
        name = b""
        if isinstance(operation, str):
            name = fit(operation, NAME_BYTES)
            operation = SCHEDULES + crc32(operation.encode())
        call = (row, operation, root, count, DTYPES.get(dtype, UNKNOWN), REDUCTIONS.get(reduction, UNKNOWN))
        if len(self.notes) >= NOTES_KEPT:
            self.notes.clear()
        code = frame.f_code  # kept, so that no other code can get its identity
        note = CALL_BODY.pack(*call, frame.f_lineno, file_label(code.co_filename), name)
        self.notes[key] = made = code, hash(call) & HASH_MASK, note
        return made

    def all_have_made(self, call: Call) -> bool:
        """Return whether all ranks of a call's communicator have made this call or a later one."""
        return any(each.row == call.row and each.all_have_reached(call.number) for each in self.channels)

    def post_place(self, frame: FrameType | None) -> None:
        """Note the student's line at which this rank waits."""
        self.slot.place = fit(student_line_of(frame), PLACE_BYTES)


def _threads() -> set[int]:
    """Return the threads of this process, without the main thread and those of the lab."""
    main = threading.main_thread()
    return {
        each.ident or 0
        for each in threading.enumerate()
        if each is not main and not each.name.startswith("mpiwatch")
    }


class Waiting:
    """What a rank waits for: how to announce it, and how to give it up."""

    since_s = 0.0  # when the wait began
    interrupted_since_s = -1.0  # of waiting, when another rank was seen to be interrupted; -1 before
    polls = 0  # of MPI, by this wait
    is_over = False  # it ended in an error; what the slot says about it stays for others to read

    def __init__(self, watch: Watch, members: list[int], deadline_s: float) -> None:
        self.watch, self.members, self.deadline_s = watch, members, deadline_s

    def announce(self) -> None:
        """Note in this rank's slot what it waits for."""

    def withdraw(self) -> bool:
        """Give up; return False if it is too late for that because all ranks have joined."""
        return True

    def mismatch(self) -> Mismatch | None:
        """Return in what the calls of the ranks that have joined differ from ours."""
        return None

    def is_settled(self) -> bool:
        """Tell whether all ranks have made a call and announced at which line they wait."""
        return True

    def is_stuck(self) -> bool:
        """Tell whether this rank and all that it waits for are in blocking messages that can never end."""
        return False

    def cannot_complete(self, patience_s: float) -> bool:
        """Tell whether a rank that is waited for ended at least `patience_s` ago."""
        return False


class MessageWait(Waiting):
    """Waiting for a message to arrive or to be taken; `peer` is a rank in the world, or -1 for any rank.

    `sends_too`: the call also sends a message, which its peer may receive. `purpose`: what the message is
    part of, such as a schedule; empty for a message of the caller's own.
    """

    origin = ""  # the line that made the request
    is_circular = True  # whether this wait can be part of a circle of messages
    failed_polls = 0  # by a rank that polls in a loop of its own
    waited_for: Sequence[MPI.Request] = ()  # not counted as other messages under way

    def __init__(  # noqa: PLR0917
        self,
        watch: Watch,
        members: list[int],
        deadline_s: float,
        operation: int,
        peer: int,
        tag: int,
        frame: FrameType,
        sends_too: bool = False,
        purpose: str = "",
    ) -> None:
        super().__init__(watch, members, deadline_s)
        self.operation, self.peer, self.tag, self.frame = operation, peer, tag, frame
        self.sends_too, self.purpose = sends_too, purpose
        self.stuck_since = 0, 0  # what `confirmation` returned, and how often MPI had been polled then

    def announce(self) -> None:
        slot, watch = self.watch.slot, self.watch
        watch.post_place(self.frame)
        slot.message_operation, slot.message_peer, slot.message_tag = self.operation, self.peer, self.tag
        slot.message_purpose = fit(self.purpose, PURPOSE_BYTES)
        slot.message_origin = fit(self.origin, ORIGIN_BYTES)
        slot.message_polls = self.failed_polls
        if self.purpose or not self.is_circular or watch.is_threaded():
            slot.message_number = 0
        else:
            watch.message_waits += 1
            slot.message_number = watch.message_waits
            slot.has_sends = (
                self.sends_too or under_way.has_unfinished() or under_way.sends.any(self.waited_for)
            )
            slot.has_receives = under_way.receives.any(self.waited_for)
        slot.waiting_in = WaitingIn.MESSAGE

    def is_stuck(self) -> bool:
        """Return whether this rank and all ranks that it waits for, directly or through others, are stuck.

        Messages that the ranks sent before they began to wait may still be on their way. They have arrived
        when each rank has polled MPI often enough since all were seen to wait; each rank notes this in its
        slot.
        """
        recorder, rank = self.watch.recorder, self.watch.rank
        if self.watch.is_threaded():  # a thread that has begun since then may send the message
            self.watch.slot.message_number = 0
        if not recorder.slots[rank].message_number or (
            self.peer >= 0 and recorder.slots[self.peer].waiting_in != WaitingIn.MESSAGE
        ):
            return False
        waiting = deadlock.waits(recorder)
        if rank not in waiting or rank not in deadlock.stuck_ranks(waiting, recorder.size):
            return False
        closure = deadlock.closure(rank, waiting)
        if len({self.watch.machines[other] for other in closure}) > 1:
            return False  # a slow link may hold a message for long; at the deadline, the hub sees the circle
        own = deadlock.confirmation(rank, waiting)
        if self.stuck_since[0] != own:
            self.stuck_since = own, self.polls
        if self.polls - self.stuck_since[1] < POLLS_WHILE_STUCK:
            return False
        self.watch.slot.confirmed = own
        return all(
            recorder.slots[other].confirmed == deadlock.confirmation(other, waiting) for other in closure
        )

    def cannot_complete(self, patience_s: float) -> bool:
        peers = [self.peer] if self.peer >= 0 else [rank for rank in self.members if rank != self.watch.rank]
        return bool(peers) and all(self.watch.has_ended(peer, patience_s) for peer in peers)


def schedule_wait(watch: Watch, missing: Pending, frame: FrameType) -> MessageWait:
    """Return how to wait for the messages of a schedule, also on a communicator that is not watched."""
    members = world_ranks(missing.comm)
    peers = [members[rank] for rank in (*missing.receives, *missing.sends)]
    operation = OPERATIONS["Recv" if missing.receives or not peers else "Send"]
    peer = peers[0] if peers else -1
    purpose = missing.operation
    return MessageWait(watch, members, watch.deadline_s(), operation, peer, -1, frame, purpose=purpose)


def world_ranks(comm: MPI.Intracomm) -> list[int]:
    """Return the ranks of the world that are the members of a communicator."""
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = MPI.Group.Translate_ranks(group, None, world)
    group.Free()
    world.Free()
    return [int(rank) for rank in ranks]
