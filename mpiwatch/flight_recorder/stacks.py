"""The stack of another process: it answers a signal whatever it is doing, inside MPI or in a loop.

The signal handler is faulthandler's, in C: it does not wait for the interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
from time import monotonic, sleep
from typing import BinaryIO

SIGNAL = signal.SIGUSR2
ANSWER_TIMEOUT_S = 0.5
SETTLED_S = 0.004  # an answer is written line by line: it is complete when nothing has followed for so long
POLL_S = 0.0005


def write_stack_on_signal(file: BinaryIO) -> None:
    """From now on, write this process's stack to a file, opened for appending, when the signal arrives."""
    with contextlib.suppress(ValueError):  # not the main thread
        # An interpreter that ends puts back what was there before: by default, the signal kills the process.
        signal.signal(SIGNAL, signal.SIG_IGN)
    faulthandler.register(SIGNAL, file, all_threads=False)


def request_stack(pid: int, file: BinaryIO) -> list[tuple[str, int]]:
    """Return the frames of a process (file and line), innermost first; empty if it does not answer.

    The caller holds the recorder's lock, because all processes answer into the same file.
    """
    os.ftruncate(file.fileno(), 0)
    try:
        os.kill(pid, SIGNAL)
    except OSError:
        return []
    deadline = monotonic() + ANSWER_TIMEOUT_S
    size, since = 0, monotonic()
    while monotonic() < deadline and not (size and monotonic() - since > SETTLED_S):
        sleep(POLL_S)
        if (now := os.fstat(file.fileno()).st_size) != size:
            size, since = now, monotonic()
    return frames_in(file)


def frames_in(file: BinaryIO) -> list[tuple[str, int]]:
    """Return the frames (file and line), innermost first, of the last stack that faulthandler has written."""
    text = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
    return [(_unescaped(name), int(line)) for name, line in re.findall(r'File "(.*)", line (\d+) in ', text)]


def _unescaped(name: str) -> str:
    """Return a file's name as it was before faulthandler wrote it in ASCII."""
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))",
        lambda escape: chr(int(next(filter(None, escape.groups())), 16)),
        name,
    )
