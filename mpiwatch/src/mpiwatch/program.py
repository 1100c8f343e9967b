"""Run an unchanged mpi4py program with its ranks watched: `mpiwatch` and `python -m mpiwatch`.

Each rank has two processes. The parent outlives the program, names the rank if it dies, prints the report of
a hang and ends the job: when a rank dies, MPI ends the others within milliseconds, and no launcher says which
rank died first; and a rank that hangs inside MPI cannot end itself. The parents of all ranks see one another
in the flight recorder. A parent never loads MPI.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import json
import os
import pickle  # noqa: F401  (mpi4py imports it: a file pickle.py beside the program must not take its place)
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from mpiwatch import imports, modes
from mpiwatch.guard import Guard
from mpiwatch.launch import HANG_EXIT_CODE, STRICT_EXIT_CODE, Options, first_on_its_node, refuse_world_of_one
from mpiwatch.machines import MOST_FILES, Hub, Server, hand_over, serve_here, take_over
from mpiwatch.output import remove, write_whole
from mpiwatch.places import describe, frames_in, own_folders, place_in
from mpiwatch.processes import (
    child_ends,
    die_with_parent,
    die_with_proxy,
    print_error,
    sweep_after_this_job,
    wait_until_read,
)
from mpiwatch.recorder import (
    ERROR_BYTES,
    PLACE_BYTES,
    CellState,
    Death,
    FlightRecorder,
    ReportRequest,
    Slot,
    fit,
)
from mpiwatch.report import Reason, Report, render
from mpiwatch.script import load
from mpiwatch.snapshot import publish

if TYPE_CHECKING:
    from mpiwatch.trace_files import Keeper

__all__ = ["begin_watching", "load"]

MPI_MODULE = "mpi4py.MPI"


def call_after_init(function: Callable[[], None]) -> None:
    """Call the function once, in the program's main thread, when MPI has been initialised."""
    finder = _Finder(function)
    if MPI_MODULE in sys.modules:  # without being initialised, by the process that has forked this one
        finder.wait_for_init(sys.modules[MPI_MODULE])
    else:
        sys.meta_path.insert(0, finder)


class _Finder(MetaPathFinder):
    """Finds mpi4py.MPI once, through the other finders, and lets its loader call a function at the end."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MPI_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = functools.partial(self._load, spec.loader)
        return spec

    def _load(self, loader: Any, module: ModuleType) -> None:
        del vars(loader)["exec_module"]
        loader.exec_module(module)
        if module.Is_initialized():
            self.function()
        else:
            self.wait_for_init(module)

    def wait_for_init(self, module: Any) -> None:
        """Call the function after MPI_Init."""

        def then_calling(init: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(init)
            def init_and_watch(*arguments: Any, **named: Any) -> Any:
                result = init(*arguments, **named)
                self.function()
                return result

            return init_and_watch

        module.Init, module.Init_thread = then_calling(module.Init), then_calling(module.Init_thread)


def show_error(error: BaseException) -> None:
    """Print an uncaught error of the program as Python does, without the frames of this package.

    Nor do the errors that caused it show them.
    """
    library_files = *own_folders(), "<frozen runpy", runpy.__file__
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        shown = left.pop()
        if shown is None or id(shown) in seen:
            continue
        seen.add(id(shown))
        left += [shown.__cause__, shown.__context__]
        foreign, at = [], shown.__traceback__
        while at is not None:
            if not at.tb_frame.f_code.co_filename.startswith(library_files):
                foreign.append(at)
            at = at.tb_next
        for at, following in zip(foreign, [*foreign[1:], None], strict=False):
            at.tb_next = following
        shown.__traceback__ = foreign[0] if foreign else None
    sys.excepthook(type(error), error, error.__traceback__)


class ParentConnection:
    """The connection from this process, the program, to its parent."""

    def __init__(self, connection: socket.socket, stack: BinaryIO, options: Options) -> None:
        self.connection, self.options = connection, options
        self.watch: Any = None  # of class Watch, whose module loads MPI
        self.server: Server | None = None  # run by the parent
        self.has_ended = False  # and its findings have been printed
        self.pid = os.getpid()
        if not faulthandler.is_enabled():
            # If a signal kills the program, the parent reads there at which line it was.
            faulthandler.enable(stack, all_threads=False)
        call_after_init(self.watch_mpi)

    def watch_mpi(self) -> None:
        """Watch this process's MPI, and tell the parent where the flight recorder is. Collective."""
        from mpi4py import MPI  # noqa: PLC0415  (only now that the program itself has loaded it)

        refuse_world_of_one(self.options.command, MPI.COMM_WORLD.size, MPI.get_vendor()[0])
        with imports.from_environment_alone():
            from mpiwatch.communicators import watch_world  # noqa: PLC0415  (it loads MPI)

        watched = watch_world(
            deadline_s=self.options.deadline_s,
            keep=True,
            in_program=True,
            has_rendezvous=self.options.strict,
            serve=self._serve,
        )
        self.watch = watched.watch
        if self.watch is None:
            return
        self.watch.before_error = stay
        recorder, rank = self.watch.recorder, self.watch.rank
        with contextlib.suppress(OSError):
            hand_over(rank, recorder, self.server, self.connection)
            self.connection.recv(1)  # the parent has opened it
        if self.server is not None:
            self.server.close()  # this process's end of the connections: the parent has its own
        threading.Thread(target=self._flush_when_asked, name="mpiwatch-flush", daemon=True).start()
        MPI.Intracomm.Barrier(watched)
        machine = recorder.head.machine
        if rank == min(other for other, slot in enumerate(recorder.slots) if slot.machine == machine):
            recorder.remove()  # the memory exists as long as a process uses it
        if self.options.strict:
            with imports.from_environment_alone():
                modes.begin_mode("strict", watched)
            atexit.register(self._end_mode)
            finalize = MPI.Finalize

            def end_and_finalize() -> None:
                self._end_mode()
                finalize()

            setattr(MPI, "Finalize", functools.wraps(finalize)(end_and_finalize))  # noqa: B010
        if self.options.trace is not None:
            with imports.from_environment_alone():
                from mpiwatch import trace_recorder  # noqa: PLC0415
            trace_recorder.begin_in_program(self.options.trace, MPI.COMM_WORLD)

    def _end_mode(self) -> None:
        """Print strict mode's findings; if one is an error, let the parent exit with STRICT_EXIT_CODE."""
        mode = modes.registered
        if mode is None or self.has_ended or os.getpid() != self.pid:
            return
        self.has_ended = True
        end = mode.end_program()
        if end.has_errors:
            self.watch.slot.exit_code = STRICT_EXIT_CODE
        # If the findings are complete, rank 0 has those of all ranks.
        if end.text and (not end.is_complete or self.watch.rank == 0):
            print(end.text, file=sys.stderr, flush=True)
            if self.options.json:
                with contextlib.suppress(OSError):
                    write_whole(Path(self.options.findings), end.json)

    def _serve(self, server: Server, progress: Callable[[], object]) -> None:
        """Let the parent, which outlives this process, connect this machine with the others."""
        if len(server.connections) > MOST_FILES:
            serve_here(server, progress)
        else:
            self.server = server

    def note_error(self, error: BaseException) -> None:
        """Note that the program has ended with an uncaught error."""
        if self.watch is not None:
            self.watch.end_cell(CellState.RAISED, describe(error), type(error).__name__)
        recording = sys.modules.get("mpiwatch.trace_recorder")  # with --trace
        if recording is not None:
            recording.note_error(error)

    def _flush_when_asked(self) -> None:
        """Flush the program's output when the parent asks for it."""
        with contextlib.suppress(OSError, ValueError):
            if self.connection.recv(1):
                for stream in sys.stdout, sys.stderr:
                    stream.flush()
                self.connection.sendall(b"\n")


def stay() -> NoReturn:
    """Wait until the parent ends this process, so that none of the program's code runs after a report."""
    while True:
        sleep(1)


# In the environment of ranks that may run on another machine than the supervisor of their mpiexec.
ELSEWHERE = {"SSH_CONNECTION", "SLURM_JOB_ID"}


def begin_watching(options: Options) -> ParentConnection:
    """Fork: return in the child, whose MPI will be watched; the parent exits when the child has ended.

    Call it before MPI is loaded and before there are threads.
    """
    parent = os.getpid()
    to_child, to_parent = socket.socketpair()
    stack = tempfile.TemporaryFile()  # noqa: SIM115  (open for as long as the program runs)
    child = os.fork()
    if child:
        die_with_proxy()
        if first_on_its_node() and not (options.launched and ELSEWHERE.isdisjoint(os.environ)):
            sweep_after_this_job()
        to_parent.close()
        Parent(child, to_child, stack, options).wait_and_exit()
    to_child.close()
    die_with_parent(signal.SIGKILL, parent)
    return ParentConnection(to_parent, stack, options)


# The parent

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

    STEPS = "wait", "end_after_report"  # of the loop
    rank = -1  # until the program has MPI; from then on, there is a flight recorder
    recorder: FlightRecorder
    slot: Slot
    server: Server | None = None
    keeper: Keeper | None = None  # of rank 0, with a trace: the process that writes it

    def __init__(self, child: int, connection: socket.socket, stack: BinaryIO, options: Options) -> None:
        self.child, self.connection, self.stack, self.options = child, connection, stack, options
        self.was_told_to_end = False
        self.delayed: list[int] = []  # signals that came while it was not known whether the child had ended
        self.has_written_trace = False

    def wait_and_exit(self) -> NoReturn:
        """Wait until the child ends or there is a report; exit with the job's code."""
        woken = child_ends()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for signum in FORWARDED:
            signal.signal(signum, self._forward)
        guard = Guard("mpiwatch")
        code = self._ended()
        while code is None:
            for name in self.STEPS:
                guard.do(name, getattr(self, name), woken)
            code = self._ended()
        guard.do("_after", self._after, code)
        self._exit(code)  # after an error in the last step

    def wait(self, woken: int) -> None:
        """Wait until the child has ended or has MPI, or for POLL_S; then watch the program if it has MPI."""
        is_watching = self.rank >= 0
        files: list[int | socket.socket] = [woken] if is_watching else [woken, self.connection]
        ready, _, _ = select.select(files, [], [], POLL_S if is_watching else None)
        with contextlib.suppress(BlockingIOError):
            os.read(woken, MESSAGE_BYTES)
        if self.connection in ready:
            handed_over = take_over(self.connection)
            if handed_over is not None:
                self._begin(*handed_over)

    def end_after_report(self, woken: int) -> None:
        """End this rank if there is a report."""
        report = self._report()
        if report is not None:
            self._end(report)

    def _begin(self, rank: int, recorder: FlightRecorder, server: Server | None) -> None:
        """Watch the program, whose rank has joined the flight recorder."""
        self.rank, self.recorder, self.server = rank, recorder, server
        self.slot = recorder.slots[rank]
        if rank == 0 and self.options.trace is not None and not self.options.launched:
            from mpiwatch.trace_files import start_keeper  # noqa: PLC0415  (rarely needed)

            self.keeper = start_keeper(self.options.trace, recorder.size)
        if isinstance(server, Hub):
            server.deadline_s = lambda: self.options.deadline_s
        if server is not None:
            server.start()
        if rank == 0 and self.options.json:
            with contextlib.suppress(OSError):
                remove(Path(self.options.json))  # from an earlier run
        self.connection.sendall(b"\n")

    def _report(self) -> Report | None:
        """Return the report that ends the job, if there is one."""
        report = self.recorder.last_report() if self.rank >= 0 and self.recorder.head.epoch else None
        return None if report is None or report.reason is Reason.INTERRUPTED else report

    def _ended(self) -> int | None:
        """Return the child's exit code, once it has ended. From then on, its pid may be another process's."""
        child, self.child = self.child, 0  # until it is known, signals are delayed
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        self.child = child
        while self.delayed:
            self._signal(self.delayed.pop(0))
        return None

    def _signal(self, signum: int) -> None:
        """Send a signal to the child unless it has ended."""
        if self.child:
            os.kill(self.child, signum)
        else:
            self.delayed.append(signum)

    def _forward(self, signum: int, frame: object) -> None:
        self.was_told_to_end |= signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        self._signal(signum)

    def _after(self, code: int) -> NoReturn:
        """Exit with the child's code; if the child has died, report that first."""
        if self.rank < 0:
            self._exit(code)
        if code >= 0:
            # Strict mode may have noted another one. The program itself ends as usual: MPICH's mpiexec kills
            # all ranks when one exits early, as os._exit does, even after MPI_Finalize.
            code = self.slot.exit_code or code
        self.slot.exit_code = code if code >= 0 else 128 - code
        self.slot.has_exited = 1
        if self.was_told_to_end and code < 0 and not self._report():
            self._exit(code)  # the launcher or the user has ended it, and needs no report
        if self._was_aborted() and not self._report():
            if self.rank == 0:
                self._write_json(None)
            self._exit(code)  # the launcher ends the ranks that do not notice it
        if (code < 0 or self.slot.cell_state == CellState.RUNNING) and not self._report():
            self._report_death(code)
        report = self._report()
        if report:
            self._end(report)
        slots, has_files = self.recorder.slots, bool(self.options.json or self.options.trace)
        if code or (self.rank == 0 and has_files):  # the other ranks' exit codes matter
            _wait(lambda: all(slot.has_exited for slot in slots) or self._report() is not None, OTHERS_S)
        if self.rank == 0:
            if self._report() is None:
                self._write_json(None)
                self._write_trace()
            self.slot.has_left = 1
        elif code and has_files:  # when one rank fails, the launcher kills the others
            _wait(lambda: bool(slots[0].has_left) or self._report() is not None, SHOWN_S)
        self._exit(code)

    def _was_aborted(self) -> bool:
        """Return whether a rank has called `Abort`: MPI then ends the others, which needs no report."""
        return any(slot.last_words for slot in self.recorder.slots)

    def _report_death(self, code: int) -> None:
        """Publish that the rank has died, unless there is another report."""
        if code >= 0:
            _wait(lambda: self._report() is not None, CAUSE_S)
        epoch = self.recorder.head.epoch
        self.slot.error = fit(_cause(code), ERROR_BYTES)
        self.slot.place = fit(place_in(frames_in(self.stack)), PLACE_BYTES)
        self.slot.has_died = Death.DIED
        if self._report() is None:
            everyone = list(range(self.recorder.size))
            request = ReportRequest(Reason.RANK_DIED, self.options.deadline_s, everyone, self.rank)
            publish(self.recorder, self.rank, epoch, request, int, PUBLISH_S)

    def _end(self, report: Report) -> NoReturn:
        """End this rank after a report; first let it flush its output."""
        with contextlib.suppress(OSError):
            self.connection.sendall(b"\n")
            select.select([self.connection], [], [], FLUSH_S)
        self._show(report)
        if self.options.trace is not None:
            self._save_trace(self.options.trace)
        self._signal(signal.SIGKILL)
        for file in sys.stdout, sys.stderr:
            wait_until_read(file.fileno())
        # When one rank ends, the launcher kills all others. So wait until this machine's ranks are ready.
        self.slot.has_left = 1
        here = [slot for slot in self.recorder.slots if slot.machine == self.slot.machine]
        _wait(lambda: all(slot.has_left for slot in here), LEAVE_S)
        self._exit(self._exit_code(report))

    def _show(self, report: Report) -> None:
        """Print the report and write the file, or wait until another rank's parent has done so."""
        head = self.recorder.head
        with self.recorder.locked():
            is_first = not head.shown_by and self.slot.machine == self.recorder.slots[0].machine
            if is_first:
                head.shown_by = 1 + self.rank
        if not is_first:
            _wait(lambda: bool(head.is_shown), SHOWN_S)
            return
        is_written = self._write_json(report)
        if not (is_written and self.options.launched):  # `run` prints what it finds in the file
            print_error(f"\n{render(report, in_program=True)}\n")
        head.is_shown = 1

    def _exit_code(self, report: Report) -> int:
        """Return the exit code of the job after a report."""
        if report.reason is Reason.RANK_DIED and report.reporter is not None:
            return self.recorder.slots[report.reporter].exit_code or HANG_EXIT_CODE
        return HANG_EXIT_CODE

    def _write_json(self, report: Report | None) -> bool:
        """Write the file, if one is asked for; return whether it is there."""
        if not self.options.json:
            return False
        codes = [slot.exit_code if slot.has_exited else None for slot in self.recorder.slots]
        findings = Path(self.options.findings)
        content = {
            "exit_code": self._exit_code(report) if report else max(code or 0 for code in codes),
            "exit_codes": codes,
            "report": json.loads(report.to_json()) if report else None,
            "findings": json.loads(findings.read_text()) if findings.exists() else [],
        }
        findings.unlink(missing_ok=True)
        try:
            write_whole(Path(self.options.json), json.dumps(content, indent=1) + "\n")
        except OSError as error:
            print(f"mpiwatch: the report could not be written: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def _save_trace(self, trace: str) -> None:
        """After a report, note the end in this rank's log, and wait until rank 0 has written the trace.

        The launcher kills all processes, also this one, as soon as the first of the programs has ended.
        """
        from mpiwatch.trace_files import note_end  # noqa: PLC0415  (rarely needed)

        note_end(trace, self.rank)
        if self.options.launched:  # `run` writes it when the job has ended
            return
        slots = self.recorder.slots
        if self.rank == 0:
            _wait(lambda: all(slot.trace_is_ready or slot.has_died for slot in slots[1:]), LEAVE_S)
            self._write_trace()
        self.slot.trace_is_ready = 1
        _wait(lambda: bool(slots[0].trace_is_ready or slots[0].has_died), SHOWN_S)

    def _write_trace(self) -> None:
        """Write the trace of all ranks, on rank 0 and once, unless `run` does it."""
        if self.options.trace is None or self.rank != 0 or self.options.launched or self.has_written_trace:
            return
        from mpiwatch.trace_files import write_trace  # noqa: PLC0415  (rarely needed)

        self.has_written_trace = True
        if self.keeper is None or not self.keeper.write():
            write_trace(self.options.trace, self.recorder.size)

    def _exit(self, code: int) -> NoReturn:
        if self.server is not None:
            self.server.stop()  # it sends the last states of this machine's ranks
        self._write_trace()
        os._exit(code if code >= 0 else 128 - code)
