"""Run an unchanged mpi4py program with its ranks watched: `mpiwatch` and `python -m mpiwatch`.

Each rank has two processes: the program and its parent (see parent.py). The parent outlives the program,
names the rank if it dies, prints the report of a hang and ends the job.
"""

# ruff: noqa: PLC0415 (imports inside functions: each process imports only what it needs, and the program must
# be able to set environment variables before it loads NumPy and MPI)

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import functools
import io
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from mpiwatch import STRICT_EXIT_CODE
from mpiwatch.launch import Options, findings_file, refuse_world_of_one
from mpiwatch.processes import die_with_parent, die_with_proxy

if TYPE_CHECKING:
    from mpiwatch.machines import Server
    from mpiwatch.waiting import Watch


MPI_MODULE = "mpi4py.MPI"


def call_after_init(function: Callable[[], None]) -> None:
    """Call the function once, in the program's main thread, when MPI has been initialised."""
    sys.meta_path.insert(0, _Finder(function))


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
            for name in "Init", "Init_thread":
                setattr(module, name, self._then_calling(getattr(module, name)))

    def _then_calling(self, init: Callable[..., Any]) -> Callable[..., Any]:
        def init_and_watch(*arguments: Any, **named: Any) -> Any:
            result = init(*arguments, **named)
            self.function()
            return result

        return functools.update_wrapper(init_and_watch, init, ("__name__", "__doc__"), ())


def run_script(words: tuple[str, ...], is_module: bool) -> None:
    """Run a program as `__main__`; `words` are its path or module and its arguments.

    Return when the program ends, or raise its SystemExit or uncaught exception.
    """
    program = words[0]
    sys.argv[:] = words
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(program))
    if os.path.isdir(program) or zipfile.is_zipfile(program):
        runpy.run_path(program, run_name="__main__")
        return
    path = os.path.abspath(program)  # like Python's own `__file__`
    # Functions that run at exit expect the program's `__main__`; runpy would remove its module before that.
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __builtins__=builtins, __loader__=loader, __cached__=None)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def show_error(error: BaseException) -> None:
    """Print an uncaught error of the program as Python does, without the frames of this package.

    Nor do the errors that caused it show them.
    """
    from mpiwatch.source import own_folders

    own = *own_folders(), "<frozen runpy", runpy.__file__
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        seen.add(id(each))
        foreign, at = [], each.__traceback__
        while at is not None:
            if not at.tb_frame.f_code.co_filename.startswith(own):
                foreign.append(at)
            at = at.tb_next
        rest = None
        for at in reversed(foreign):
            rest = TracebackType(rest, at.tb_frame, at.tb_lasti, at.tb_lineno)
        each.__traceback__ = rest
        left += [why for why in (each.__cause__, each.__context__) if why is not None and id(why) not in seen]
    sys.excepthook(type(error), error, error.__traceback__)


class Link:
    """The connection from this process, the program, to its parent."""

    def __init__(
        self,
        connection: socket.socket,
        stack: BinaryIO,
        options: Options,
        load_strict: Callable[[], Any] | None = None,
    ) -> None:
        self.connection, self.options, self.load_strict = connection, options, load_strict
        self.watch: Watch | None = None
        self.server: Server | None = None  # run by the parent
        self.exit_code = 0
        self.has_ended = False  # and its findings have been printed
        self.pid = os.getpid()
        atexit.register(self._exit)  # registered before mpi4py's, so it runs after MPI has ended
        if not faulthandler.is_enabled():
            # If a signal kills the program, the parent reads there at which line it was.
            faulthandler.enable(stack, all_threads=False)
        call_after_init(self.begin)

    def begin(self) -> None:
        """Watch this process's MPI, and tell the parent where the flight recorder is. Collective."""
        from mpi4py import MPI

        refuse_world_of_one(self.options.command, MPI.COMM_WORLD.size, MPI.get_vendor()[0])
        from mpiwatch.communicators import watch_world
        from mpiwatch.machines import hand_over

        watched = watch_world(
            deadline_s=self.options.deadline_s,
            keep=True,
            in_program=True,
            strict=self.options.strict,
            on_deadlock=lambda report, rank: stay(),
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
        if rank == min(each for each, slot in enumerate(recorder.slots) if slot.machine == machine):
            recorder.remove()  # the memory exists as long as a process uses it
        if self.options.strict and self.load_strict is not None:
            strict = self.load_strict()
            strict.begin(watched)
            atexit.register(self._end_strictly, strict)
            finalize = MPI.Finalize

            def end_and_finalize() -> None:
                self._end_strictly(strict)
                finalize()

            setattr(MPI, "Finalize", functools.wraps(finalize)(end_and_finalize))  # noqa: B010

    def _end_strictly(self, strict: Any) -> None:
        """Print strict mode's findings; if one is an error, let the program end with STRICT_EXIT_CODE."""
        if self.has_ended or os.getpid() != self.pid:
            return
        self.has_ended = True
        found, is_complete = strict.end_program()
        if not all(each.is_remark for each in found):
            self.exit_code = STRICT_EXIT_CODE
        # If the findings are complete, rank 0 has those of all ranks.
        if found and (not is_complete or (self.watch and self.watch.rank == 0)):
            print(strict.findings.render(found), file=sys.stderr, flush=True)
            if self.options.json:
                with contextlib.suppress(OSError):
                    Path(findings_file(self.options.json)).write_text(strict.findings.to_json(found))

    def _exit(self) -> None:
        if self.exit_code and os.getpid() == self.pid:
            for stream in sys.stdout, sys.stderr:
                stream.flush()
            os._exit(self.exit_code)

    def _serve(self, server: Server, progress: Callable[[], object]) -> None:
        """Let the parent, which outlives this process, connect this machine with the others."""
        from mpiwatch.machines import MOST_FILES, serve_here

        if len(server.connections) > MOST_FILES:
            serve_here(server, progress)
        else:
            self.server = server

    def note_error(self, error: BaseException) -> None:
        """Note that the program has ended with an uncaught error."""
        from mpiwatch.recorder import CellState
        from mpiwatch.source import describe

        if self.watch is not None:
            self.watch.end_cell(CellState.RAISED, describe(error))

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


def begin_watching(options: Options, load_strict: Callable[[], Any] | None = None) -> Link:
    """Fork: return in the child, whose MPI will be watched; the parent exits when the child has ended.

    Call it before MPI is loaded and before there are threads.
    """
    parent = os.getpid()
    to_child, to_parent = socket.socketpair()
    stack = tempfile.TemporaryFile()  # noqa: SIM115  (open for as long as the program runs)
    child = os.fork()
    if child:
        die_with_proxy()
        to_parent.close()
        from mpiwatch.parent import Parent

        Parent(child, to_child, stack, options).run()  # does not return
    to_child.close()
    die_with_parent(signal.SIGKILL, parent)
    return Link(to_parent, stack, options, load_strict)
