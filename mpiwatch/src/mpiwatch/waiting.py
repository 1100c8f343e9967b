"""Waiting for other ranks with a deadline: a rank learns why another one does not come.

All waits are one loop, `wait_until`. It polls MPI and yields its core to any rank that needs it; most
messages arrive meanwhile. A rank that has waited for much longer than a message takes describes what it waits
for in the flight recorder, and ends with a hang report if that cannot come. A wait that is not watched goes
on polling until its deadline.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic, sleep
from types import FrameType
from typing import Any, NoReturn

from mpi4py import MPI

from mpiwatch.machines import Server
from mpiwatch.places import located, place_of
from mpiwatch.processes import cores
from mpiwatch.recorder import (
    EPOCH_MASK,
    EPOCH_SHIFT,
    ERROR_BYTES,
    FILE_BYTES,
    PLACE_BYTES,
    ROWS_PER_RANK,
    Call,
    CellState,
    FlightRecorder,
    ReportRequest,
    WaitingIn,
    fit,
)
from mpiwatch.report import Mismatch, Reason, Report, ranks_phrase, render
from mpiwatch.snapshot import is_in_mpi_call, publish

DEADLINE_S = 20.0

yield_core: Callable[[], object] = getattr(os, "sched_yield", lambda: sleep(0))

SPIN_S = 0.0005  # wait without sleeping; a collective of small arrays takes a tenth of this
ENDED_S = 2.0  # a rank that has ended its cell, and starts no other for so long, does not join any more
INTERRUPT_S = 1.0  # how long a rank waits for its own interrupt after another rank was interrupted
ABANDON_S = 2.0  # how long an interrupted rank waits for the hub
INSPECT_S = 0.02  # between two inspections of what the other ranks do
NAP_S = 0.001

_do_nothing: Callable[[], object] = int  # no call is cheaper

# How a wait begins, before it reads the clock. A process that is watched and has a core of its own polls for
# a few tenths of a millisecond and keeps the core.
_polls: Iterable[object] = range(100)
_pause = yield_core
_POLLS_ON_OWN_CORE = range(1000)

Over = Callable[[], bool]
Describe = Callable[[float], "Waiting | None"]
watched: Watch | None = None  # of this process, once its world is watched


def wait_until(is_done: Over, describe: Describe, spin_s: float = SPIN_S) -> None:
    """Return when `is_done()`; raise HangError, with a report on all ranks, if that cannot happen.

    When the wait has taken `spin_s` seconds, `describe` is called with the time waited, and returns what this
    rank waits for. If it returns None, because that is not watched, it is called again at the next poll.
    Time in which this process did not run (a laptop's sleep) does not count.
    """
    waited = 0.0
    waiting: Waiting | None = None
    try:
        for _ in _polls:
            if is_done():
                return
            _pause()
        last = monotonic()
        while not is_done():
            now = monotonic()
            waited += min(now - last, 0.1)
            last = now
            if waiting is None and waited >= spin_s:
                waiting = describe(waited)
            if waiting is None:
                yield_core()
            else:
                waiting.go_on(now, waited)
    except KeyboardInterrupt:
        waiting = waiting or describe(waited)
        if waiting is None:
            raise
        waiting.interrupt()
    finally:
        if waiting is not None:
            waiting.end()


# Errors of ranks: those that all raise together, and those of ranks that hang or are interrupted


class CollectiveError(ValueError):
    """An error that every rank of the communicator raises, with the same message."""


def raise_together(comm: MPI.Intracomm, fault: str | None) -> None:
    """Raise CollectiveError on every rank if any rank has a fault; the message names the ranks that have one.

    `fault` is a message, or None on a rank without a fault. Collective; costs one small allgather.
    """
    raise_faults(comm.allgather(fault))


def raise_faults(faults: Sequence[str | None]) -> None:
    """Raise CollectiveError if one of the faults, listed by rank and the same on all ranks, is not None."""
    ranks: dict[str, list[int]] = {}
    for rank, fault in enumerate(faults):
        if fault is not None:
            ranks.setdefault(fault, []).append(rank)
    if ranks:
        raise CollectiveError(
            "; ".join(
                f"{ranks_phrase(with_fault, len(faults))}: {fault}" for fault, with_fault in ranks.items()
            )
        )


class HangError(CollectiveError):
    """A collective or message that cannot complete; every rank that waits raises it, with the same report.

    `report` (a `mpiwatch.report.Report`) is the message as data. No data has moved in the
    collective, and the communicators can be used again: in the next cell, or after
    `mpiwatch.communicators.resume()`. After that, non-blocking collectives need a new communicator, made by
    Create_group: those that the hang has left cannot be cancelled.
    """

    def __init__(self, report: Report, rank: int) -> None:
        super().__init__(render(report))
        self.report = report
        self.rank = rank

    def _render_traceback_(self) -> list[str]:  # by IPython on an engine; the notebook shows the report once
        return [f"HangError: {str(self).splitlines()[0]}"]


class Interrupted(KeyboardInterrupt):
    """The user interrupted a rank while it was waiting."""

    def _render_traceback_(self) -> list[str]:  # a traceback would show only the loop that waits
        return [f"KeyboardInterrupt: {self}"]


class ForkedError(RuntimeError):
    """A forked child of a rank has called MPI, which belongs to its parent."""

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"a forked child of rank {rank} called MPI, which only the process that initialised it may use: "
            "call MPI before the fork, or start the child with `subprocess` or multiprocessing's `spawn`."
        )


# What a rank waits for


class Waiting:
    """What a rank waits for: how to announce it, and how to give it up."""

    since_s = 0.0  # when the wait was announced
    inspected_s = 0.0  # of waiting, when the other ranks were last inspected
    interrupted_since_s = -1.0  # of waiting, when another rank was seen to be interrupted; -1 before
    polls = 0  # of MPI, by this wait
    is_over = False  # it ended in an error; what the slot says about it stays for others to read

    def __init__(self, watch: Watch, members: list[int], deadline_s: float) -> None:
        self.watch, self.members, self.deadline_s = watch, members, deadline_s
        self.patience_s = min(ENDED_S, deadline_s)  # with a rank that has ended its cell

    def go_on(self, now: float, waited: float) -> None:
        """Announce the wait, let MPI make progress, and rest. Raise HangError if the wait cannot end."""
        watch = self.watch
        if not self.since_s:
            watch.check_process()
            thread = threading.get_ident()
            self.since_s = now
            watch.waiting[thread] = self
            watch.callers.add(thread)
            watch.post(self)
        watch.progress()
        self.polls += 1
        sleep(min(NAP_S, waited / 20))
        if (
            waited - self.inspected_s > INSPECT_S
            or waited > self.deadline_s
            or watch.recorder.head.epoch != watch.epoch
        ):
            self.inspected_s = waited
            watch.inspect(self, waited)

    def interrupt(self) -> None:
        """Give up after a KeyboardInterrupt, unless all ranks have joined: then it does not take long."""
        watch = self.watch
        if self.withdraw():
            watch.publish(ReportRequest(Reason.INTERRUPTED, 0.0, [watch.rank], watch.rank), ABANDON_S)
            raise Interrupted(f"rank {watch.rank} was interrupted while it waited.") from None

    def end(self) -> None:
        """Note that the current thread does not wait any more."""
        self.watch.waiting.pop(threading.get_ident(), None)
        self.watch.withdraw(self)

    def announce(self) -> None:
        """Note in this rank's slot what it waits for."""

    def withdraw(self) -> bool:
        """Give up; return False if it is too late for that because all ranks have joined."""
        return True

    def mismatch(self, waited: float) -> Mismatch | None:
        """Return in what the calls of the ranks that have joined differ from ours, if it can be reported."""
        return None

    def is_stuck(self) -> bool:
        """Tell whether this rank and all that it waits for are in blocking messages that can never end."""
        return False

    def cannot_complete(self) -> bool:
        """Tell whether a rank that is waited for ended at least `patience_s` ago."""
        return False


def attempt() -> int:
    """Return a number that is the same on all ranks and changes after each hang that is reported.

    Schedules add it to their tag, so that messages left over from a hang are never received.
    """
    return 0 if watched is None else watched.epoch


def world_ranks(group: MPI.Group) -> list[int]:
    """Return the ranks of the world that are the members of a group, and free the group."""
    world = MPI.COMM_WORLD.Get_group()
    ranks = MPI.Group.Translate_ranks(group, None, world)
    group.Free()
    world.Free()
    return [int(rank) for rank in ranks]


class Watch:
    """The part of this process in the flight recorder: one for all its watched communicators."""

    def __init__(
        self,
        recorder: FlightRecorder,
        rank: int,
        progress: Callable[[], object],
        machines: Sequence[int] | None = None,
    ) -> None:
        global _polls, _pause
        self.recorder = recorder
        self.machines = machines or [0] * recorder.size  # of the ranks
        self.server: Server | None = None  # only in the first rank of each machine, if there are several
        self.noted_row = -1  # the row whose members are in the slot
        self.rank = rank
        self.slot = recorder.slots[rank]
        self.history = list(self.slot.history)  # one object for each place in that memory
        self.history_notes: list[object] = [None] * len(self.history)  # the last note written to each
        self.progress = progress  # lets MPI move messages that are on their way
        self.before_error: Callable[[], object] = _do_nothing  # in a program, it does not return
        self.before_end: Callable[[], object] = _do_nothing  # of the process, by a call of the program
        self.cell_begins: Callable[[], object] = _do_nothing  # wakes the watchdog
        self.waits = True  # whether a collective begins only when all ranks have called it
        self.deadline_s: Callable[[], float] = lambda: DEADLINE_S  # the world's
        self.patience = 1.0  # how many deadlines to wait for a rank that computes
        self.waiting: dict[int, Waiting] = {}  # what threads of this process wait for
        self.posted: Waiting | None = None  # the one of these in the slot
        self.callers: set[int] = {threading.main_thread().ident or 0}  # threads that have waited in MPI
        self.strangers = _threads()  # threads of neither the program nor the cell
        self.channels: list[Any] = []  # of class Channel, which imports this module
        self.free_rows = [rank * ROWS_PER_RANK + i for i in reversed(range(ROWS_PER_RANK))]
        self.free_words: dict[int, list[int]] = {}  # where words start, by their number
        self.last_numbers: dict[int, int] = {}  # of the last call of the communicator that had a row before
        self.calls = self.message_waits = 0
        self.slot.pid = os.getpid()
        if recorder.size <= cores():  # ranks that share a core give it to each other at once
            _polls, _pause = _POLLS_ON_OWN_CORE, _do_nothing
        atexit.register(self.end_program)
        os.register_at_fork(after_in_child=self._forget_callers)
        self.join_epoch()

    def _forget_callers(self) -> None:
        """Let the next collective on each communicator, and each wait, call `check_process`.

        They must not poll MPI before: that may take messages which have arrived for the parent.
        """
        global _polls  # noqa: PLW0603
        _polls = iter(self.check_process, self)
        for channel in self.channels:
            channel.caller = 0

    def check_process(self) -> None:
        """Raise ForkedError in a forked child, which has this rank's memory but no MPI of its own."""
        if os.getpid() != self.slot.pid:
            raise ForkedError(self.rank)

    def join_epoch(self) -> None:
        """Take part in the current epoch: earlier hangs are over."""
        self.epoch = self.recorder.head.epoch
        self.base = (self.epoch & EPOCH_MASK) << EPOCH_SHIFT
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
        self.slot.running_at = self.slot.running_label = b""  # a line of the last cell
        self.slot.running_line = 0
        self.slot.failed_call = b""
        self.slot.calls_before_cell = self.channels[0].number if self.channels else 0
        self.recorder.set_cell_state(self.rank, CellState.RUNNING)
        self.cell_begins()

    def end_program(self) -> None:
        """Note that this process is ending."""
        if os.getpid() == self.slot.pid:  # not a forked child
            self.slot.waiting_in = WaitingIn.NOTHING
            if self.before_error is _do_nothing or self.slot.cell_state != CellState.RAISED:
                self.recorder.set_cell_state(self.rank, CellState.EXITED)

    def end_cell(self, state: CellState, error: str, error_type: str = "") -> None:
        """Note that the cell has returned or raised: the error as text, and its class."""
        if os.getpid() != self.slot.pid:
            return  # a forked child
        self.slot.waiting_in = WaitingIn.NOTHING
        self.recorder.set_cell_state(self.rank, state, error, error_type)

    def new_row(self, ranks: int) -> tuple[int, int, int]:
        """Return a row for a communicator of which this process is rank 0.

        Return where its words start, too, and from which number its calls count on. `ranks`: how many ranks
        it has. All three are -1 if there is no room left.
        """
        first = self._new_words(ranks) if self.free_rows else -1
        if first < 0:
            return -1, -1, -1
        row = self.free_rows.pop()
        number = max(self.recorder.head.first_number, self.last_numbers.get(row, 0))
        return row, first, number

    def _new_words(self, ranks: int) -> int:
        """Return where so many words start that no other communicator uses; -1 if there is no room left.

        Words of a communicator start at the same place on all machines: each machine hands out its own part.
        """
        free = self.free_words.get(ranks)
        if free:
            return free.pop()
        recorder = self.recorder
        part = len(recorder.words) // (max(self.machines) + 1)
        with recorder.locked():
            start = recorder.head.words_in_use
            if start + ranks > part:
                return -1
            recorder.head.words_in_use = start + ranks
        return recorder.head.machine * part + start

    def free_row(self, row: int, first: int, number: int, ranks: int) -> None:
        """Give back what `new_row` has returned, with the number of the communicator's last call."""
        self.free_rows.append(row)
        self.last_numbers[row] = number
        self.free_words.setdefault(ranks, []).append(first)

    def inspect(self, waiting: Waiting, waited: float) -> None:
        """Raise HangError if a wait cannot end, or if another rank has reported a hang."""
        self.post(waiting)
        reason = self._reason_to_stop(waiting, waited)
        if reason and waiting.withdraw():
            waiting.is_over = True
            self.publish(ReportRequest(reason, waiting.deadline_s, waiting.members, self.rank))
            self.raise_report()

    def withdraw(self, waiting: Waiting) -> None:
        """Remove a wait from the slot; keep what an error is about for the others."""
        if self.posted is waiting:
            self.posted = None
            self.slot.waiting_since_s = 0.0
            self.slot.waiting_in = self.slot.waiting_in if waiting.is_over else WaitingIn.NOTHING

    def post(self, waiting: Waiting) -> None:
        """Note in the slot that this rank waits, if all of its threads do that use MPI."""
        if not self.all_threads_wait():
            self.withdraw(waiting)
        elif self.posted is None:
            self.posted = waiting
            self.slot.waiting_since_s = waiting.since_s
            waiting.announce()

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
            assert report is not None, f"epoch {self.recorder.head.epoch} after {self.epoch} has no report"
            # An interrupt mostly reaches all ranks. Wait for it here, or it comes while an error is handled.
            if waiting.interrupted_since_s < 0 and report.reason is Reason.INTERRUPTED:
                waiting.interrupted_since_s = waited
            since = waiting.interrupted_since_s
            return None if 0 <= since <= waited < since + INTERRUPT_S else report.reason
        difference = waiting.mismatch(waited)
        if difference:
            return difference
        return self._reason_to_report(waiting, waited) if self.posted is waiting else None

    def _reason_to_report(self, waiting: Waiting, waited: float) -> Reason | None:
        """Return why the wait cannot end, if it cannot; all threads of this process wait."""
        if waiting.is_stuck():
            return Reason.CIRCLE
        if waited > waiting.patience_s and waiting.cannot_complete():
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

    def raise_report(self) -> NoReturn:
        """Raise the last report. This rank then takes part again: it has been told."""
        self.before_error()
        report = self.recorder.last_report()
        assert report is not None, f"epoch {self.recorder.head.epoch} after {self.epoch} has no report"
        self.join_epoch()
        raise HangError(report, self.rank)

    def check_epoch(self) -> None:
        """Raise HangError if a rank has reported a hang since this rank was told last.

        The other ranks do not make this rank's next call. After an interrupt, wait for this rank's own.
        """
        if self.recorder.head.epoch != self.epoch:
            report = self.recorder.last_report()
            if report is not None and report.reason is not Reason.INTERRUPTED:
                self.raise_report()

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

    def all_have_made(self, call: Call) -> bool:
        """Return whether all ranks of a call's communicator have made this call or a later one."""
        return any(
            channel.row == call.row and channel.all_have_reached(call.number) for channel in self.channels
        )

    def note_last_words(self, text: str, frame: FrameType | None) -> None:
        """Note the call by which this rank ends its process, and its line; then send what it has printed."""
        self.slot.last_words = fit(f"{text} at {place_of(frame)}", ERROR_BYTES)
        self.before_end()

    def post_place(self, frame: FrameType | None) -> None:
        """Note the student's line at which this rank waits."""
        place = located(frame)
        self.slot.place = fit(place.text, PLACE_BYTES)
        self.slot.place_label = fit(place.label, FILE_BYTES)
        self.slot.place_line = place.line


def _threads() -> set[int]:
    """Return the threads of this process, without the main thread and our own."""
    main = threading.main_thread()
    return {
        thread.ident or 0
        for thread in threading.enumerate()
        if thread is not main and not thread.name.startswith("mpiwatch")
    }
