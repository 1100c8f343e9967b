"""The watchdog: a thread in each rank that notices when all unfinished ranks are stuck in MPI calls.

It samples the main thread four times a second: is it still inside the same call of the MPI library
(`mpiwatch.library_calls`), and at which line is it? While no cell runs, it sleeps. It looks at a program that
changes under its eyes and may hold anything, so each step of a sample is guarded: see `mpiwatch.guard`.
"""

from __future__ import annotations

import os
import sys
import threading
from time import monotonic
from types import FrameType

from mpiwatch.collectives import ChannelComm
from mpiwatch.guard import Guard
from mpiwatch.launch import HANG_EXIT_CODE
from mpiwatch.library_calls import Entry, main_thread
from mpiwatch.message_waits import polls
from mpiwatch.places import place_of
from mpiwatch.recorder import (
    NAME_BYTES,
    NO_RENDEZVOUS,
    NUMBER_SHIFT,
    PLACE_BYTES,
    Call,
    CellState,
    ReportRequest,
    fit,
)
from mpiwatch.report import COLLECTIVES, Reason
from mpiwatch.snapshot import Suspicion, publish
from mpiwatch.waiting import ENDED_S, Watch

SAMPLE_S = 0.25
SUSPICIOUS_SAMPLE_S = 0.05  # once this rank has been stuck for the deadline
IDLE_SAMPLE_S = 2.0  # while no cell runs: the beginning of the next wakes the watchdog
GAP_S = 1.0  # after a longer gap between two samples, the time between them is unknown
GRACE_S = 0.5  # for a rank to leave an MPI call after a report, because the other ranks go on
STOP_S = 2.0


class Watchdog(threading.Thread):
    """Notes in this rank's slot which MPI call its main thread is stuck in; publishes a deadlock's report.

    The first rank to be certain publishes it. A rank that is still stuck GRACE_S later ends its process, or
    in a program leaves this to its parent; unless `in_program`, it also does so after the report of another
    hang. Ranks in watched calls raise the report.
    """

    STEPS = "note_polls", "note_call", "note_line", "note_time", "leave_after_report", "report_deadlock"

    def __init__(self, watch: Watch, in_program: bool) -> None:
        super().__init__(name="mpiwatch-watchdog", daemon=True)
        self.watch, self.recorder, self.slot = watch, watch.recorder, watch.slot
        self.deadline_s, self.in_program = watch.deadline_s, in_program
        self.guard = Guard(self.name)
        self.is_over = False
        self.is_due = threading.Event()
        self.sampled_s = self.since_s = monotonic()
        self.epoch = self.recorder.head.epoch  # when the main thread was last seen outside this call
        self.entry: Entry | None = None  # the call that the main thread was in at the last sample
        self.call: str | None = None  # its name, if it has lasted for a sample; None if it ends by itself
        self.suspicion = Suspicion(self.recorder)
        self.reported_s = 0.0  # when the report of a hang that this rank is stuck in was seen; 0: none was

    def stop(self) -> None:
        """End the thread: this process is ending."""
        self.is_over = True
        self.is_due.set()
        self.join(STOP_S)

    def run(self) -> None:
        """Sample until `stop` is called."""
        self.watch.cell_begins = self.is_due.set
        while not self.is_over:
            for name in self.STEPS:
                self.guard.do(name, getattr(self, name), monotonic())
            is_late = self.guard.do("is_late", self.is_late, monotonic())
            self.is_due.wait(SUSPICIOUS_SAMPLE_S if is_late else self.pause_s())
            self.is_due.clear()

    def pause_s(self) -> float:
        """Return for how long this thread may sleep; a cell that begins ends its sleep."""
        return SAMPLE_S if self.slot.cell_state == CellState.RUNNING else IDLE_SAMPLE_S

    def note_polls(self, now: float) -> None:
        """Find out whether the rank does nothing but poll."""
        polls.sample(self.watch, now)

    def note_call(self, now: float) -> None:
        """Note which MPI call the main thread is inside, and since when."""
        entry = main_thread.entry
        is_running = self.slot.cell_state == CellState.RUNNING
        if entry is None or entry is not self.entry or now - self.sampled_s > GAP_S or not is_running:
            self.entry, self.since_s, self.call, self.reported_s = entry, now, None, 0.0
            self.epoch = self.recorder.head.epoch
            self.slot.mpi_call_since_s = 0.0
        elif self.call is None and not self.slot.waiting_since_s:
            self.call = self.stuck_call(entry, now)
        if self.call:
            self.slot.mpi_call_since_s = self.since_s
        self.sampled_s = now

    def note_line(self, now: float) -> None:
        """Note the line at which the main thread runs, or at which it has entered the MPI call."""
        if self.slot.cell_state != CellState.RUNNING:
            return
        frame = self.frame()
        if self.call and not self.slot.waiting_since_s:
            self.watch.post_place(frame)
        else:
            self.slot.running_at = fit(place_of(frame), PLACE_BYTES)

    def note_time(self, now: float) -> None:
        """Note when this sample was taken, after all that it has noted: others rely on that."""
        self.slot.sampled_s = self.sampled_s

    def stuck_call(self, entry: Entry, now: float) -> str | None:
        """Return the name of the MPI call that the main thread is in, and note it.

        A collective that all ranks have joined ends by itself, unless their arguments do not fit: return None
        as long as it may.
        """
        name, comm, can_leave = entry
        if isinstance(comm, ChannelComm) and comm._channel is not None and name in COLLECTIVES:
            calls = self.recorder.last_calls(self.watch.rank)
            if calls and calls[-1].row == comm._channel.row:
                name = calls[-1].operation.decode()  # what carries it has another name
                if self.has_joined(calls[-1]) and not self.is_left_alone(comm._channel.members, now):
                    return None
        self.slot.mpi_call = fit(name, NAME_BYTES)
        self.slot.can_leave = can_leave
        self.guard.do("post_place", self.watch.post_place, self.frame())
        return name

    def frame(self) -> FrameType | None:
        """Return the frame that the main thread is in."""
        return sys._current_frames().get(main_thread.thread or 0)

    def has_joined(self, call: Call) -> bool:
        """Return whether all ranks have begun this rank's last watched collective."""
        if self.slot.joined_word == NO_RENDEZVOUS:
            return self.watch.all_have_made(call)
        return bool(self.slot.joined_word >> NUMBER_SHIFT == call.number)

    def is_left_alone(self, members: list[int], now: float) -> bool:
        """Return whether another member left this rank's last collective at least a deadline ago.

        It has ended its cell since, or waits in a later call.
        """
        for slot in (self.recorder.slots[rank] for rank in members if rank != self.watch.rank):
            has_ended = slot.cell_state != CellState.RUNNING
            since_s = slot.cell_state_since_s if has_ended else slot.waiting_since_s
            if since_s and now - since_s > self.deadline_s():
                return True
        return False

    def is_left_by_ended(self) -> bool:
        """Return whether all unfinished ranks are in one collective that a rank has ended without."""
        if not self.call or self.entry is None:
            return False
        name, comm, _ = self.entry
        channel = comm._channel if isinstance(comm, ChannelComm) and name in COLLECTIVES else None
        calls = self.recorder.last_calls(self.watch.rank)
        if channel is None or not calls or calls[-1].row != channel.row:
            return False
        word, slots = int(channel.words[channel.own]), self.recorder.slots
        joined = {member for rank, member in enumerate(channel.members) if channel.has_joined(rank, word)}
        missing = set(channel.members) - joined
        unfinished = {rank for rank, slot in enumerate(slots) if slot.cell_state == CellState.RUNNING}
        return unfinished <= joined and any(slots[rank].cell_state == CellState.EXITED for rank in missing)

    def patience_s(self) -> float:
        """Return for how long this rank may be stuck."""
        deadline_s = self.deadline_s()
        return min(ENDED_S, deadline_s) if self.is_left_by_ended() else deadline_s

    def is_late(self, now: float) -> bool:
        """Return whether this rank has been stuck for too long, in an MPI call or a watched call."""
        since_s = self.slot.waiting_since_s or self.slot.mpi_call_since_s
        return bool(since_s) and now - since_s > self.patience_s()

    def leave_after_report(self, now: float) -> None:
        """End this process if it stays in an MPI call after a report: Python cannot interrupt the call."""
        if not self.call or self.recorder.head.epoch == self.epoch:
            return
        if not self.reported_s:
            self.heed_report(now)
        elif now - self.reported_s > GRACE_S:
            self.guard.do("before_error", self.watch.before_error)
            os._exit(HANG_EXIT_CODE)

    def heed_report(self, now: float) -> None:
        """Note a report after which this rank must leave MPI; after any other, begin to wait anew."""
        report = self.recorder.last_report()
        assert report is not None, f"epoch {self.recorder.head.epoch} after {self.epoch} has no report"
        if report.reason is Reason.DEADLOCK or not (self.in_program or report.reason is Reason.INTERRUPTED):
            self.reported_s = now
        else:
            self.since_s, self.epoch = now, self.recorder.head.epoch

    def report_deadlock(self, now: float) -> None:
        """Publish a report if all unfinished ranks are stuck. On several machines, the hub does this."""
        if self.recorder.head.hub or not self.is_late(now) or self.recorder.head.epoch != self.epoch:
            return
        patience_s = self.patience_s()
        if self.suspicion.is_certain(now, patience_s):
            everyone = list(range(self.recorder.size))
            request = ReportRequest(Reason.DEADLOCK, patience_s, everyone, self.watch.rank)
            publish(self.recorder, self.watch.rank, self.epoch, request, int)
