"""What guards a rank of a notebook against its cells: ends that say why, bounded output, forked children.

A call that ends the process (os._exit, Abort, a signal to itself) ends all ranks within milliseconds. So it
is noted with its line, and what the ranks have printed is sent, before it is made. `MPI.Init()` and
`MPI.Finalize()`, as in a program pasted into a cell, have no effect: the ranks go on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from labkit.cluster.adapter import functions
from labkit.units import approx_size
from mpiwatch.sessions import place_of

MOST_CHARACTERS = 200 << 10  # that a cell shows of each rank
SENT_S = 0.3  # for output to leave this process and, as an engine sends it from time to time, the others
HARMLESS = signal.SIGINT, signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH


class LimitedOutput:
    """Bounds what a stream of an engine shows of a cell, and says how much it has left out."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.plain_write = stream.write
        self.begin_cell()
        stream.write = self.write

    def begin_cell(self) -> None:
        """Start to count anew."""
        self.written = self.left_out = 0

    def write(self, text: str) -> int:
        """Write what there is room for."""
        room = MOST_CHARACTERS - self.written
        self.written += len(text)
        if len(text) <= room:
            written: int = self.plain_write(text)
            return written
        if room > 0:
            self.plain_write(text[:room])
        self.left_out += len(text) - max(0, room)
        return len(text)

    def end_cell(self) -> None:
        """Say how much was left out."""
        if self.left_out:
            left_out, shown = approx_size(self.left_out), approx_size(MOST_CHARACTERS)
            self.plain_write(f"\n… and {left_out} more: a cell shows at most {shown} of each rank.\n")
            self.left_out = 0


def limit_output() -> list[LimitedOutput]:
    """Bound the output of this process's cells."""
    return [LimitedOutput(stream) for stream in (sys.stdout, sys.stderr)]


own_streams: dict[str, Any] = {}  # by their names in `sys`


def keep_streams() -> None:
    """Keep the streams of this process: a cell may put others in their place, and close these."""
    for name in "stdout", "stderr":
        stream = own_streams[name] = getattr(sys, name)
        stream.close = stream.flush  # a closed one cannot be opened again


def restore_closed_streams() -> None:
    """Put the streams of this process in the place of closed ones, without which no code can run."""
    for name, stream in own_streams.items():
        if getattr(getattr(sys, name), "closed", True):
            setattr(sys, name, stream)


def note_ends(watch: Any) -> None:
    """Note calls that end this process before they are made, and let MPI.Init and MPI.Finalize do nothing."""
    from mpi4py import MPI  # noqa: PLC0415  (the notebook's kernel loads this module, and no MPI)

    watch.before_end = send_output
    os._exit = _noting(watch, "os._exit", os._exit)
    os.abort = _noting(watch, "os.abort", os.abort)
    os.kill = _noting_kill(watch, os.kill)
    signal.raise_signal = _noting_signal(watch, signal.raise_signal)
    for name in "Init", "Init_thread", "Finalize":
        setattr(MPI, name, _without_effect(name, getattr(MPI, name)))


def send_output() -> None:
    """Send what this rank has printed."""
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    time.sleep(SENT_S)


def _noting(watch: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def noted(*arguments: Any) -> Any:
        if os.getpid() == watch.slot.pid:  # not a forked child
            arguments_text = ", ".join(map(repr, arguments))
            watch.note_last_words(f"called {name}({arguments_text})", sys._getframe(1))
        return call(*arguments)

    return noted


def _noting_kill(watch: Any, kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @wraps(kill)
    def noted(pid: int, signalnum: int) -> None:
        if pid == os.getpid():
            _note_signal(watch, signalnum, sys._getframe(1))
        kill(pid, signalnum)

    return noted


def _noting_signal(watch: Any, raise_signal: Callable[[int], None]) -> Callable[[int], None]:
    @wraps(raise_signal)
    def noted(signalnum: int) -> None:
        _note_signal(watch, signalnum, sys._getframe(1))
        raise_signal(signalnum)

    return noted


def _note_signal(watch: Any, signalnum: int, frame: Any) -> None:
    """Note a signal of this process to itself if it ends it; ipyparallel's handler would let a cell go on."""
    if os.getpid() != watch.slot.pid or signalnum not in set(signal.Signals) or signalnum in HARMLESS:
        return
    handler = signal.getsignal(signalnum)
    is_ipyparallels = functions.is_own_object(handler)
    if handler is signal.SIG_DFL or is_ipyparallels:
        watch.note_last_words(f"sent itself {signal.Signals(signalnum).name}", frame)
        if is_ipyparallels:
            signal.signal(signalnum, signal.SIG_DFL)


def _without_effect(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def nothing(*_: Any) -> None:
        place = place_of(sys._getframe(1))
        print(f"MPI.{name}() has no effect here, at {place}: the ranks of a notebook go on.")

    return nothing


# Signals for which an engine has handlers of its own; these and SIGINT are for its children to end by.
HANDLED = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT
_before_fork = threading.local()  # `mask`: the thread's signal mask


def restore_signals_in_children() -> None:
    """Let signals end forked children from their first moment: the engine's handlers are not meant for them.

    A signal that reaches a child before its handlers are restored waits. It used to be lost, and its sender
    waited for the end of the child forever: `multiprocessing.Pool` sends SIGTERM to workers that may not have
    begun to run on a busy machine.
    """
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_release_signals, after_in_child=_restore_signals
    )


def _hold_signals() -> None:
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*HANDLED, signal.SIGINT))


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _restore_signals() -> None:
    for signum in HANDLED:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    _release_signals()
