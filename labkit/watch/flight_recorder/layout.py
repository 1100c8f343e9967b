"""The board: memory that the ranks of one machine share, on which each notes what it is about to call.

It needs no progress of MPI, so it tells where every rank is also when none of them moves: the ranks read it,
and so does a notebook's kernel. Per rank there is a slot (process, cell, the last calls), and per
communicator a row with one word per rank: epoch, number of the call, and a hash of what is called. Ranks
whose words are equal have come to the same call;
that comparison is all that a call costs when nothing is wrong.

A hang opens a new epoch: words of an old one count no more, so no rank has to be told where the others are.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import json
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from time import monotonic
from typing import Any

HISTORY = 32  # calls that a slot keeps
ROWS = 64  # communicators that a rank may open as their rank 0
REPORT_BYTES = 1 << 16

# A word, from the top: 12 bits epoch, 28 bits number of the call, 1 bit "gave up", 23 bits hash.
EPOCH, NUMBER, GAVE_UP, HASH = 52, 24, 1 << 23, (1 << 23) - 1
NUMBERS = (1 << 28) - 1

RUNS, RETURNED, RAISED = range(3)  # a rank's cell (or program)
AWAKE, IN_COLLECTIVE, IN_MESSAGE = range(3)  # what a rank waits in


class Call(ctypes.Structure):
    """One call of a collective, as noted before it. -1 stands for what does not apply or is not known."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("number", "channel", "op", "root", "count", "kind", "reduction", "line")
        ),
        ("file", ctypes.c_char * 32),
    )


CALL = Struct("=7q32s")  # a Call without its number
NOTE = Struct(f"=q{CALL.size}s")  # a Call, written at once
assert NOTE.size == ctypes.sizeof(Call)


class Slot(ctypes.Structure):
    """A rank: what it runs, waits in, and has called."""

    _fields_ = (
        ("pid", ctypes.c_int64),
        ("state", ctypes.c_int64),
        ("cell", ctypes.c_int64),  # cells begun
        ("since", ctypes.c_double),  # when `state` came about; seconds of the clock that all processes share
        ("first", ctypes.c_int64),  # calls on the world's communicator before this cell
        ("going", ctypes.c_uint64),  # the word of the last call that all were seen to have come to
        ("waits", ctypes.c_int64),
        ("op", ctypes.c_int64),  # of a message: its operation, peer and tag
        ("peer", ctypes.c_int64),
        ("tag", ctypes.c_int64),
        ("stacks", ctypes.c_int64),  # whether it answers the signal (see stacks.py)
        ("calls", ctypes.c_int64),  # noted so far
        ("history", Call * HISTORY),
        ("where", ctypes.c_char * 256),
        ("error", ctypes.c_char * 512),
    )


class Head(ctypes.Structure):
    """What stands above the slots."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("start", ctypes.c_int64),  # calls count on from here in this epoch: no number is used twice
        ("length", ctypes.c_int64),  # of the last report
        ("report", ctypes.c_char * REPORT_BYTES),
    )


class FlightRecorder:
    """The board of `path`, in this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = open(path, "r+b")  # noqa: SIM115  (open for as long as the board is)
        self.stacks = open(f"{path}-stack", "a+b", buffering=0)  # noqa: SIM115
        self.memory = mmap.mmap(self.file.fileno(), 0)
        self.head = Head.from_buffer(self.memory)
        self.size: int = self.head.size
        self.slots = (Slot * self.size).from_buffer(self.memory, ctypes.sizeof(Head))
        self.rows = ctypes.sizeof(Head) + self.size * ctypes.sizeof(Slot)
        self.words = memoryview(self.memory)[self.rows :].cast("Q")
        self._thread = threading.Lock()

    @staticmethod
    def create(size: int) -> str:
        """Make an empty board for `size` ranks; return its path."""
        total = ctypes.sizeof(Head) + size * ctypes.sizeof(Slot) + size * ROWS * size * 8
        error: OSError | None = None
        for folder in dict.fromkeys(["/dev/shm"] * (sys.platform == "linux") + [tempfile.gettempdir()]):
            try:
                handle, path = tempfile.mkstemp(prefix=f"labkit-flight-recorder-{os.getpid()}-", dir=folder)
            except OSError as full:
                error = full
                continue
            try:
                with os.fdopen(handle, "wb") as file:
                    # Written, not left sparse: no room for it is an error here, and not a SIGBUS later.
                    file.write(bytes(Head(size=size)) + bytes(total - ctypes.sizeof(Head)))
                return path
            except OSError as full:
                error = full
                os.unlink(path)
        raise OSError(f"no room for {total} bytes of shared memory: {error}") from error

    def close(self) -> None:
        """Let go of the memory; the board stays for the others."""
        self.words.release()
        del self.head, self.slots
        self.file.close()
        self.stacks.close()

    def remove(self) -> None:
        """Take the board's files away; who has it open keeps it."""
        for path in glob.glob(f"{glob.escape(self.path)}*"):
            os.unlink(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other processes out; the kernel lifts the lock of a process that dies."""
        with self._thread:
            fcntl.lockf(self.file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.file, fcntl.LOCK_UN)

    def publish(self, report: dict[str, Any]) -> None:
        """Leave a report for all, and open a new epoch. Call it locked."""
        text = json.dumps(report).encode()[: REPORT_BYTES - 1]
        self.head.report = text
        self.head.length = len(text)
        self.head.start = max((word >> NUMBER & NUMBERS for word in self.words), default=0)
        self.head.epoch += 1

    def report(self) -> dict[str, Any] | None:
        """Return the last report, if any."""
        return json.loads(self.head.report) if self.head.length else None

    def enter(self, rank: int, state: int, error: str = "") -> None:
        """Note that a rank's cell has begun, returned or raised."""
        slot = self.slots[rank]
        slot.error = fit(error, 512)
        slot.cell += state == RUNS
        slot.since = monotonic()
        slot.state = state

    def last_calls(self, rank: int) -> list[Call]:
        """Return the last calls that a rank has noted, oldest first."""
        slot = self.slots[rank]
        done = slot.calls
        return [slot.history[index % HISTORY] for index in range(max(0, done - HISTORY), done)]

    def note_offset(self, rank: int) -> int:
        """Return where in memory a rank's history begins."""
        return ctypes.sizeof(Head) + rank * ctypes.sizeof(Slot) + Slot.history.offset


def fit(text: str, size: int) -> bytes:
    """Return a text as bytes that fit a field of `size`, whole characters only."""
    return text.encode()[: size - 1].decode(errors="ignore").encode()
