"""The job as the parents of all ranks see it in the flight recorder: the report and the exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from mpiwatch import HANG_EXIT_CODE
from mpiwatch.flight_recorder.layout import (
    ERROR_BYTES,
    PLACE_BYTES,
    CellState,
    Death,
    FlightRecorder,
    fit,
)
from mpiwatch.flight_recorder.report import Reason, Report
from mpiwatch.flight_recorder.text import render
from mpiwatch.machines.hub import Hub
from mpiwatch.machines.publishing import publish
from mpiwatch.machines.serving import Server
from mpiwatch.machines.wishes import Wish
from mpiwatch.processes import wait_until_read
from mpiwatch.program.options import Options, findings_file

OTHERS_S = 10.0  # how long a parent waits for the other ranks to end
SHOWN_S = 5.0  # how long a parent waits for another to print the report
LEAVE_S = 2.0  # how long a parent waits for the others to be ready to end
CAUSE_S = 0.5  # if MPI ends a rank because another has died, that one's parent has this long to report first
PUBLISH_S = 5.0  # how long a dead rank's parent waits for the hub's report
POLL_S = 0.02


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
        wish = Wish(Reason.RANK_DIED, self.options.deadline_s, everyone, self.rank)
        publish(self.recorder, self.rank, epoch, wish, int, PUBLISH_S)

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
        try:
            write_whole(Path(self.options.json), json.dumps(content, indent=1) + "\n")
        except OSError as error:
            print(f"mpiwatch: the report could not be written: {error}", file=sys.stderr, flush=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is complete or, if this process is killed, as it was."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
        sleep(POLL_S)
