"""Where a process is, asked by a signal that it answers whatever it does: also inside MPI, or in a loop.

The handler is faulthandler's, in C: it needs neither the interpreter's leave nor its turn.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from time import monotonic, sleep
from typing import BinaryIO

SIGNAL = signal.SIGUSR2
ANSWER_S = 0.5
SETTLED_S = 0.004  # an answer is written line by line

Place = tuple[str, int, str]  # file, line, function


def answer_into(file: BinaryIO) -> None:
    """From now on, write this process's stack to a file, opened to append, whenever the signal comes."""
    faulthandler.register(SIGNAL, file, all_threads=False)


def ask(pid: int, file: BinaryIO) -> list[Place]:
    """Return the frames of a process that answers, innermost first; nothing if it does not.

    One at a time: all processes answer into the same file.
    """
    os.ftruncate(file.fileno(), 0)
    try:
        os.kill(pid, SIGNAL)
    except OSError:
        return []
    deadline = monotonic() + ANSWER_S
    size, since = 0, monotonic()
    while monotonic() < deadline and not (size and monotonic() - since > SETTLED_S):
        sleep(0.0005)
        if (now := os.fstat(file.fileno()).st_size) != size:
            size, since = now, monotonic()
    text = os.pread(file.fileno(), size, 0).decode(errors="replace")
    frames = re.findall(r'File "(.*)", line (\d+) in (.*)', text)
    return [(name, int(line), function) for name, line, function in frames]
