"""The program's end of the connection to its parent; it starts watching when MPI is initialised."""

# ruff: noqa: PLC0415 (imports inside functions: MPI is loaded by the program, or not at all)

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from mpiwatch import STRICT_EXIT_CODE
from mpiwatch.launch import refuse_world_of_one
from mpiwatch.program.importing import call_after_init
from mpiwatch.program.options import Options, findings_file

if TYPE_CHECKING:
    from mpiwatch.machines.serving import Server
    from mpiwatch.wait import Watch


class Link:
    """The connection from this process, the program, to its parent."""

    def __init__(self, connection: socket.socket, stack: BinaryIO, options: Options) -> None:
        self.connection, self.options = connection, options
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
        from mpiwatch.machines.serving import hand_over

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
        if self.options.strict:
            from mpiwatch.strict import ending

            ending.begin(watched)
            atexit.register(self._end_strictly)
            finalize = MPI.Finalize

            def end_and_finalize() -> None:
                self._end_strictly()
                finalize()

            setattr(MPI, "Finalize", functools.wraps(finalize)(end_and_finalize))  # noqa: B010

    def _end_strictly(self) -> None:
        """Print strict mode's findings; if one is an error, let the program end with STRICT_EXIT_CODE."""
        from mpiwatch.strict import ending, findings

        if self.has_ended or os.getpid() != self.pid:
            return
        self.has_ended = True
        found, is_complete = ending.end_program()
        if not all(each.is_remark for each in found):
            self.exit_code = STRICT_EXIT_CODE
        # If the findings are complete, rank 0 has those of all ranks.
        if found and (not is_complete or (self.watch and self.watch.rank == 0)):
            print(findings.render(found), file=sys.stderr, flush=True)
            if self.options.json:
                with contextlib.suppress(OSError):
                    Path(findings_file(self.options.json)).write_text(findings.to_json(found))

    def _exit(self) -> None:
        if self.exit_code and os.getpid() == self.pid:
            for stream in sys.stdout, sys.stderr:
                stream.flush()
            os._exit(self.exit_code)

    def _serve(self, server: Server, progress: Callable[[], object]) -> None:
        """Let the parent, which outlives this process, connect this machine with the others."""
        from mpiwatch.machines.serving import MOST_FILES, serve_here

        if len(server.connections) > MOST_FILES:
            serve_here(server, progress)
        else:
            self.server = server

    def note_error(self, error: BaseException) -> None:
        """Note that the program has ended with an uncaught error."""
        from mpiwatch.flight_recorder.layout import CellState
        from mpiwatch.flight_recorder.source import describe

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
