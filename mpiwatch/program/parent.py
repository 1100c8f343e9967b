"""The parent of a watched program: it reads the program's exit status, and ends the rank after a report.

When a rank dies, MPI ends the others within milliseconds, and no launcher says which rank died first. A rank
that hangs inside MPI cannot end itself. The parent of each rank sees how it died, and ends it if it hangs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from typing import BinaryIO, NoReturn

from mpiwatch.flight_recorder.report import Report
from mpiwatch.flight_recorder.source import student_line
from mpiwatch.flight_recorder.stacks import frames_in
from mpiwatch.machines.serving import take_over
from mpiwatch.processes import wait_until_read
from mpiwatch.program.job import Job
from mpiwatch.program.options import Options

# Signals that a launcher or a user sends to a rank. A terminal sends SIGINT to both processes.
FORWARDED = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT
POLL_S = 0.25
FLUSH_S = 1.0
MESSAGE_BYTES = 1 << 16


class Parent:
    """Waits for the program, which runs in the process `child`; 0 when that has ended."""

    def __init__(self, child: int, connection: socket.socket, stack: BinaryIO, options: Options) -> None:
        self.child, self.connection, self.stack, self.options = child, connection, stack, options
        self.job: Job | None = None  # once the program has MPI
        self.was_told_to_end = False

    def run(self) -> NoReturn:
        """Wait until the child ends or there is a report; exit with the job's code."""
        woken, wake = os.pipe()
        for file in woken, wake:
            os.set_blocking(file, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for signum in FORWARDED:
            signal.signal(signum, self._forward)
        while (code := self._ended()) is None:
            files: list[int | socket.socket] = [woken] if self.job else [woken, self.connection]
            ready, _, _ = select.select(files, [], [], POLL_S if self.job else None)
            with contextlib.suppress(BlockingIOError):
                os.read(woken, MESSAGE_BYTES)
            if self.connection in ready and (told := take_over(self.connection)):
                rank, recorder, server = told
                self.job = Job(recorder, rank, self.options, server)
                self.connection.sendall(b"\n")
            if self.job and (report := self.job.report()):
                self._end(self.job, report)
        self._after(code)

    def _ended(self) -> int | None:
        """Return the child's exit code, once it has ended. From then on, its pid may be another process's."""
        ended, status = os.waitpid(self.child, os.WNOHANG)
        if not ended:
            return None
        self.child = 0
        return os.waitstatus_to_exitcode(status)

    def _signal(self, signum: int) -> None:
        """Send a signal to the child unless it has ended."""
        if self.child:
            os.kill(self.child, signum)

    def _forward(self, signum: int, frame: object) -> None:
        self.was_told_to_end |= signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        self._signal(signum)

    def _after(self, code: int) -> NoReturn:
        """Exit with the child's code; if the child has died, report that first."""
        if self.job is None:
            _exit(code)
        job = self.job
        job.note_exit(code)
        if self.was_told_to_end and code < 0 and not job.report():
            _exit(code)  # the launcher or the user has ended it, and needs no report
        if (code < 0 or not job.has_ended_program()) and not job.report():
            job.report_death(code, student_line(frames_in(self.stack)))
        if report := job.report():
            self._end(job, report)
        job.finish(code)
        job.stop_serving()
        _exit(code)

    def _end(self, job: Job, report: Report) -> NoReturn:
        """End this rank after a report; first let it flush its output."""
        with contextlib.suppress(OSError):
            self.connection.sendall(b"\n")
            select.select([self.connection], [], [], FLUSH_S)
        job.show(report)
        self._signal(signal.SIGKILL)
        for file in sys.stdout, sys.stderr:
            wait_until_read(file.fileno())
        job.leave()
        job.stop_serving()
        _exit(job.exit_code(report))


def _exit(code: int) -> NoReturn:
    os._exit(code if code >= 0 else 128 - code)
