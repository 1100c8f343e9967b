"""Calls of the MPI library that a rank can leave: another thread makes them, and stays inside if it must.

Python cannot end a call of the MPI library. If a rank of a notebook hangs in one, such as `win.Fence()`, its
process would have to end, and with it all variables of the session. So a thread makes those calls of the
student's code which do not poll. If the call cannot complete, the main thread raises the report and the
session goes on; the thread is left inside, at the lowest priority.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from os import _exit  # by its name here: engines note calls of `os._exit`
from typing import Any

from mpi4py import MPI

from mpiwatch import library_calls, waiting
from mpiwatch.report import CONNECTING

LOOK_S = 0.02  # between two looks whether a hang was reported
LOWEST_PRIORITY = 19

Call = Callable[..., Any]


class Caller(threading.Thread):
    """Makes one call after the other for the main thread."""

    def __init__(self) -> None:
        super().__init__(name="mpiwatch-caller", daemon=True)
        self.calls: queue.SimpleQueue[tuple[Call, tuple[Any, ...], dict[str, Any]]] = queue.SimpleQueue()
        self.outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.is_left = False
        self.start()

    def run(self) -> None:
        """Make calls until the main thread has left one."""
        while not self.is_left:
            call, arguments, named = self.calls.get()
            result, error = None, None
            try:
                result = call(*arguments, **named)
            except BaseException as caught:
                error = caught
            self.outcomes.put((result, error))
            del call, arguments, named, result, error

    def leave(self) -> None:
        """Let the call go on at the lowest priority: it polls for as long as the process lives."""
        self.is_left = True
        if sys.platform == "linux" and self.native_id is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.native_id, LOWEST_PRIORITY)


class Callers:
    """The thread that makes this process's next call; those that were left are forgotten."""

    def __init__(self) -> None:
        self.free: Caller | None = None
        self.has_left = False

    def make(self, call: Call, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Make a call and return its result. Raise HangError if a hang is reported meanwhile."""
        caller = self.free or Caller()
        self.free = None
        caller.calls.put((call, arguments, named))
        try:
            result, error = wait_for_outcome(caller)
        except BaseException:
            self.leave(caller)
            raise
        self.free = caller
        if error is not None:
            raise error
        return result

    def leave(self, caller: Caller) -> None:
        """Leave a call that cannot complete. MPI cannot be finalised any more: the process ends without."""
        caller.leave()
        if not self.has_left:
            self.has_left = True
            atexit.register(end_without_mpi)


def wait_for_outcome(caller: Caller) -> tuple[Any, BaseException | None]:
    """Return the result of the thread's call, and the error that it has raised, if any."""
    while True:
        try:
            return caller.outcomes.get(timeout=LOOK_S)
        except queue.Empty:
            if waiting.watched is not None:
                waiting.watched.check_epoch()


def end_without_mpi() -> None:
    """End this process at once: a thread is still inside MPI."""
    if waiting.watched is not None:
        waiting.watched.end_program()
    sys.stdout.flush()
    sys.stderr.flush()
    _exit(0)


def install() -> None:
    """Let ranks leave calls of the MPI library, if MPI may be called by several threads at once."""
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        library_calls.leave = Callers().make
        if MPI.get_vendor()[0] == "Open MPI":
            library_calls.stays.difference_update(CONNECTING)  # MPICH waits there with its only lock
