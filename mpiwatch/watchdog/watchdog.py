"""The watchdog's thread: it samples the main thread four times a second, and reports a deadlock."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from time import monotonic

from mpiwatch import HANG_EXIT_CODE
from mpiwatch.flight_recorder.layout import NAME_BYTES, CellState, fit
from mpiwatch.flight_recorder.opcodes import OPERATION_NAMES, SCHEDULES
from mpiwatch.flight_recorder.report import Reason, Report
from mpiwatch.machines.publishing import publish
from mpiwatch.machines.wishes import Wish
from mpiwatch.requests.polls import polls
from mpiwatch.wait import Watch
from mpiwatch.watchdog.deadlock import Suspicion
from mpiwatch.watchdog.mpi_calls import mpi_call
from mpiwatch.watchdog.progress import Progress

SAMPLE_S = 0.25
SUSPICIOUS_SAMPLE_S = 0.05  # once this rank has been stuck for the deadline
GAP_S = 1.0  # after a longer gap between two samples, the time between them is unknown
GRACE_S = 0.5  # for a rank to leave an MPI call after a report, because the other ranks go on
STOP_S = PUBLISH_S = 2.0

OnDeadlock = Callable[[Report, int], None]


def end_process(report: Report, rank: int) -> None:
    """End this process at once: its main thread cannot be interrupted inside MPI."""
    os._exit(HANG_EXIT_CODE)


class Watchdog(threading.Thread):
    """Notes in this rank's slot which MPI call its main thread is stuck in; publishes a deadlock's report.

    The first rank to be certain publishes it. A rank that is still stuck GRACE_S later calls `on_deadlock`;
    unless `in_program`, it also does so after the report of another hang. Ranks in watched calls raise the
    report.
    """

    def __init__(
        self, watch: Watch, deadline_s: Callable[[], float], on_deadlock: OnDeadlock, in_program: bool
    ) -> None:
        super().__init__(name="mpiwatch-watchdog", daemon=True)
        self.watch, self.recorder, self.slot = watch, watch.recorder, watch.slot
        self.deadline_s, self.on_deadlock, self.in_program = deadline_s, on_deadlock, in_program
        self.main = threading.main_thread().ident
        self.progress = Progress()
        self.is_over = threading.Event()
        self.sampled_s = self.since_s = monotonic()
        self.epoch = self.recorder.head.epoch  # when the main thread last moved
        self.call: str | None = None  # the MPI call it has been inside since then; None if not known yet
        self.suspicion = Suspicion(self.recorder)
        self.report: tuple[Report, float] | None = None  # of a hang that this rank is stuck in; when seen

    def stop(self) -> None:
        """End the thread: this process is ending."""
        self.is_over.set()
        self.join(STOP_S)

    def run(self) -> None:
        """Sample until `stop` is called."""
        while not self.is_over.wait(SUSPICIOUS_SAMPLE_S if self.is_late(monotonic()) else SAMPLE_S):
            now = monotonic()
            self.sample(now)
            self.act(now)

    def sample(self, now: float) -> None:
        """Note which MPI call the main thread is inside, and since when."""
        polls.sample(self.watch, now)
        has_moved = self.progress.has_moved()
        if has_moved or now - self.sampled_s > GAP_S or self.slot.cell_state != CellState.RUNNING:
            self.since_s, self.call, self.report = now, None, None
            self.epoch = self.recorder.head.epoch
            self.slot.mpi_call_since_s = 0.0
        elif self.call is None and not self.slot.waiting_since_s:
            self.call = self.current_call(now)
        if self.call:
            self.slot.mpi_call_since_s = self.since_s
        self.sampled_s = self.slot.sampled_s = now

    def current_call(self, now: float) -> str | None:
        """Return the MPI call that the main thread is in, and post its place; empty if there is none.

        A collective that all ranks have joined ends by itself, unless their arguments do not fit: return None
        as long as it may.
        """
        frame = sys._current_frames().get(self.main or 0)
        name, is_wrapped = mpi_call(frame)
        if not name:
            return ""
        if is_wrapped and self.has_joined(name) and not self.is_left_alone(now):
            return None
        self.slot.mpi_call = fit(name, NAME_BYTES)
        self.watch.post_place(frame)
        return name

    def has_joined(self, name: str) -> bool:
        """Return whether this rank's last watched collective has this name, and all its ranks began it."""
        calls = self.recorder.last_calls(self.watch.rank)
        if not calls or not (
            self.slot.joined_word >> 24 == calls[-1].number
            or (self.slot.only_compares and self.watch.all_have_made(calls[-1]))
        ):
            return False
        operation = calls[-1].operation
        return operation >= SCHEDULES or OPERATION_NAMES[operation] == name

    def is_left_alone(self, now: float) -> bool:
        """Return whether another rank left this rank's last collective at least a deadline ago.

        It has ended its cell since, or waits in a later call.
        """
        row = self.recorder.last_calls(self.watch.rank)[-1].row
        members: list[int] = next((each.members for each in self.watch.channels if each.row == row), [])
        for rank in members:
            slot = self.recorder.slots[rank]
            has_ended = slot.cell_state != CellState.RUNNING
            since_s = slot.cell_state_since_s if has_ended else slot.waiting_since_s
            if rank != self.watch.rank and since_s and now - since_s > self.deadline_s():
                return True
        return False

    def is_late(self, now: float) -> bool:
        """Return whether this rank has been stuck for the deadline, in an MPI call or a watched call."""
        since_s = self.slot.waiting_since_s or self.slot.mpi_call_since_s
        return bool(since_s) and now - since_s > self.deadline_s()

    def act(self, now: float) -> None:
        """Publish a deadlock; end this process if it stays in an MPI call after a report."""
        if self.call and self.recorder.head.epoch != self.epoch:
            if self.report is None:
                self.heed_report(now)
            elif now - self.report[1] > GRACE_S:
                self.on_deadlock(self.report[0], self.watch.rank)
        elif self.is_certain(now):
            self.publish()

    def heed_report(self, now: float) -> None:
        """Note a report after which this rank must leave MPI; after any other, begin to wait anew."""
        report = self.recorder.last_report()
        assert report is not None
        if report.reason is Reason.DEADLOCK or not (self.in_program or report.reason is Reason.INTERRUPTED):
            self.report = report, now
        else:
            self.since_s, self.epoch = now, self.recorder.head.epoch

    def is_certain(self, now: float) -> bool:
        """Return whether all ranks are in a deadlock; on several machines, only the hub looks for one."""
        if self.recorder.head.hub or not self.is_late(now):
            return False
        return self.suspicion.is_certain(now, self.deadline_s())

    def publish(self) -> None:
        """Publish the report, unless another rank has done so."""
        ranks = list(range(self.recorder.size))
        wish = Wish(Reason.DEADLOCK, self.deadline_s(), ranks, self.watch.rank)
        publish(self.recorder, self.watch.rank, self.epoch, wish, int, PUBLISH_S)
