"""The parent of a watched program: it reads the program's exit status, and ends the rank after a report.

When a rank dies, MPI ends the others within milliseconds, and no launcher says which rank died first. A rank
that hangs inside MPI cannot end itself. The parent of each rank sees how it died, and ends it if it hangs.
The parents of all ranks see one another in the flight recorder. A parent never loads MPI.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO, NoReturn

from mpiwatch import HANG_EXIT_CODE
from mpiwatch.launch import Options, findings_file
from mpiwatch.machines import Hub, Server, take_over
from mpiwatch.processes import wait_until_read
from mpiwatch.recorder import ERROR_BYTES, PLACE_BYTES, CellState, Death, FlightRecorder, ReportRequest, fit
from mpiwatch.report import Reason, Report, render
from mpiwatch.snapshot import publish
from mpiwatch.source import frames_in, student_line

OTHERS_S = 10.0  # how long a parent waits for the other ranks to end
SHOWN_S = 5.0  # how long a parent waits for another to print the report
LEAVE_S = 2.0  # how long a parent waits for the others to be ready to end
CAUSE_S = 0.5  # if MPI ends a rank because another has died, that one's parent has this long to report first
PUBLISH_S = 5.0  # how long a dead rank's parent waits for the hub's report
SLEEP_S = 0.02

# Signals that a launcher or a user sends to a rank. A terminal sends SIGINT to both processes.
FORWARDED = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT
POLL_S = 0.25
FLUSH_S = 1.0
MESSAGE_BYTES = 1 << 16


class Job:
    """The job, as the parent of one rank sees it."""

    def __init__(
        self, recorder: FlightRecorder, rank: int, options: Options, server: Server | None = None
    ) -> None:
        self.recorder, self.rank, self.options, self.server = recorder, rank, options, server
        if isinstance(server, Hub):
            server.deadline_s = lambda: options.deadline_s
        if server is not None:
            server.start()
        self.slot = recorder.slots[rank]
        if rank == 0 and options.json:
            Path(options.json).unlink(missing_ok=True)  # from an earlier run

    def report(self) -> Report | None:
        """Return the report that ends the job, if there is one."""
        report = self.recorder.last_report() if self.recorder.head.epoch else None
        return None if report is None or report.reason is Reason.INTERRUPTED else report

    def has_ended_program(self) -> bool:
        """Return whether the rank's program has finished or raised an error."""
        return self.slot.cell_state != CellState.RUNNING

    def note_exit(self, code: int) -> None:
        """Note the exit code of the rank's program; a negative one is the number of a signal."""
        self.slot.exit_code = code if code >= 0 else 128 - code
        self.slot.has_exited = 1

    def report_death(self, code: int, place: str) -> None:
        """Publish that the rank has died at `place`, unless there is another report."""
        if code >= 0:
            _wait(lambda: self.report() is not None, CAUSE_S)
        epoch = self.recorder.head.epoch
        self.slot.error = fit(_cause(code), ERROR_BYTES)
        self.slot.place = fit(place, PLACE_BYTES)
        self.slot.has_died = Death.DIED
        if self.report() is not None:
            return
        everyone = list(range(self.recorder.size))
        request = ReportRequest(Reason.RANK_DIED, self.options.deadline_s, everyone, self.rank)
        publish(self.recorder, self.rank, epoch, request, int, PUBLISH_S)

    def show(self, report: Report) -> None:
        """Print the report and write the file, or wait until another rank's parent has done so."""
        head = self.recorder.head
        with self.recorder.locked():
            is_first = not head.shown_by and self.slot.machine == self.recorder.slots[0].machine
            if is_first:
                head.shown_by = 1 + self.rank
        if is_first:
            text = f"\n{render(report, in_program=True)}\n".encode(errors="replace")
            while text:
                text = text[os.write(sys.stderr.fileno(), text) :]
            wait_until_read(sys.stderr.fileno())
            self._write_json(report)
            head.is_shown = 1
        else:
            _wait(lambda: bool(head.is_shown), SHOWN_S)

    def stop_serving(self) -> None:
        """Send the last states of this machine's ranks to the other machines."""
        if self.server is not None:
            self.server.stop()

    def leave(self) -> None:
        """Wait until all ranks of this machine are ready to end; when one ends, the launcher kills all."""
        self.slot.has_left = 1
        here = [slot for slot in self.recorder.slots if slot.machine == self.slot.machine]
        _wait(lambda: all(slot.has_left for slot in here), LEAVE_S)

    def exit_code(self, report: Report) -> int:
        """Return the exit code of the job after a report."""
        if report.reason is Reason.RANK_DIED and report.reporter is not None:
            return self.recorder.slots[report.reporter].exit_code or HANG_EXIT_CODE
        return HANG_EXIT_CODE

    def finish(self, code: int) -> None:
        """Wait for the other ranks to end if their exit codes matter; write the file if one is asked for."""
        slots = self.recorder.slots
        if code or (self.rank == 0 and self.options.json):
            _wait(lambda: all(slot.has_exited for slot in slots) or self.report() is not None, OTHERS_S)
        if self.rank == 0:
            if self.report() is None:
                self._write_json(None)
            self.slot.has_left = 1
        elif code and self.options.json:  # when one rank fails, the launcher kills the others
            _wait(lambda: bool(slots[0].has_left) or self.report() is not None, SHOWN_S)

    def _write_json(self, report: Report | None) -> None:
        if not self.options.json:
            return
        codes = [slot.exit_code if slot.has_exited else None for slot in self.recorder.slots]
        content = {
            "exit_code": self.exit_code(report) if report else max(code or 0 for code in codes),
            "exit_codes": codes,
            "report": json.loads(report.to_json()) if report else None,
            "findings": _findings(self.options.json),
        }
        path = Path(self.options.json)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")  # whoever sees the file sees all of it
        try:
            part.write_text(json.dumps(content, indent=1) + "\n")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            print(f"mpiwatch: the report could not be written: {error}", file=sys.stderr, flush=True)


def _findings(path: str) -> list[dict[str, object]]:
    """Return strict mode's findings from the file that the program has left."""
    file = Path(findings_file(path))
    found: list[dict[str, object]] = json.loads(file.read_text()) if file.exists() else []
    file.unlink(missing_ok=True)
    return found


def _cause(code: int) -> str:
    """Return the predicate of a sentence about a process that has died."""
    if code >= 0:
        return f"ended with exit code {code} in the middle of its program, without ending MPI"
    name, meaning = signal.Signals(-code).name, (signal.strsignal(-code) or "").lower()
    if code == -signal.SIGKILL:
        meaning = "which the system sends when memory runs out"
    return f"was killed by {name} ({meaning})"


def _wait(is_done: Callable[[], bool], deadline_s: float) -> None:
    end = monotonic() + deadline_s
    while not is_done() and monotonic() < end:
        sleep(SLEEP_S)


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
