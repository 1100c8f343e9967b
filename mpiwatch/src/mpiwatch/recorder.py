"""The flight recorder: what each rank last called, in memory that the ranks of one machine share.

Each rank notes a call before making it. Reading the notes needs no progress of MPI, so they show where every
rank is even when none of them moves: the ranks read them, and so does a notebook's kernel. Nothing here loads
MPI. Each rank has a slot (process, cell, the last calls). Each communicator has a row with one word per rank:
the epoch, the number of the call, and a hash of what is called. Ranks with equal words have reached the same
call. When nothing is wrong, comparing the words is the whole cost of a call.

A hang report opens a new epoch. Words of an older epoch no longer count, so no rank has to be told where the
others are.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from struct import Struct
from time import monotonic
from typing import NamedTuple

from mpiwatch.processes import FLIGHT_RECORDER, alive
from mpiwatch.report import Mismatch, Reason, Report

HISTORY_CALLS = 32  # that a slot keeps
ROWS_PER_RANK = 64  # communicators that a rank may open as their rank 0
WORDS_PER_RANK = 512  # of all communicators together: so many of the world's size may be open
FILE_BYTES, NAME_BYTES, TYPE_BYTES, PURPOSE_BYTES, HOST_BYTES = 32, 32, 16, 64, 64  # fields of text, with
ORIGIN_BYTES = 128  # their final zero
PLACE_BYTES = ERROR_BYTES = 512
MEMBERS_BYTES = 128
# A report in JSON never needs more: JSON writes a byte of text as at most 6 characters ("\u0001"), so the
# place, the error, the failed call, the purpose, the origin, the rival and the host of a rank take at most
# 6 * 1915, and each of its 32 calls takes 6 * 94 for three names and less than 500 for the rest: 46,000 in
# all. A test fills every field: see tests/test_recorder.py.
REPORT_BYTES_PER_RANK = 48 << 10

# A word, from the top: 8 bits epoch, 36 bits number of the call (more than a program makes in a day), 1 bit
# "gave up", 19 bits hash.
EPOCH_SHIFT, NUMBER_SHIFT, GAVE_UP, HASH_MASK = 56, 20, 1 << 19, (1 << 19) - 1
EPOCH_MASK, NUMBER_MASK = (1 << 8) - 1, (1 << 36) - 1

# A slot's `joined_word` if ranks that share no memory made the last call, without a rendezvous.
NO_RENDEZVOUS = (1 << 64) - 1
MISMATCHES = 100  # a Mismatch is stored as its value plus this


class CellState(IntEnum):
    """Whether a rank's cell (or program) is running, and how it ended. EXITED: the process is ending."""

    RUNNING, RETURNED, RAISED, EXITED = range(4)


class Death(IntEnum):
    """Whether a rank is known to have died. UNREACHABLE: the connection to its machine was lost."""

    NONE, DIED, UNREACHABLE = range(3)


class WaitingIn(IntEnum):
    """What a rank is waiting in."""

    NOTHING, COLLECTIVE, MESSAGE = range(3)


class Call(ctypes.Structure):
    """A collective, as noted before it is called.

    -1 or an empty text stands for what does not apply or is not known.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("number", "row", "root", "count", "line")),
        ("operation", ctypes.c_char * NAME_BYTES),  # mpi4py's method, or the name of a schedule
        ("dtype", ctypes.c_char * TYPE_BYTES),  # as NumPy has it: float32
        ("reduction", ctypes.c_char * TYPE_BYTES),
        ("file", ctypes.c_char * FILE_BYTES),
    )


NUMBERED_CALL = Struct(f"=q{ctypes.sizeof(Call) - 8}s")  # a Call, written at once


class Slot(ctypes.Structure):
    """A rank: what it runs, waits in, and has called."""

    _fields_ = (
        ("pid", ctypes.c_int64),
        ("machine", ctypes.c_int64),  # the number of the rank's machine
        ("has_died", ctypes.c_int64),  # a Death, which the rank's own machine sees and tells the others
        ("has_exited", ctypes.c_int64),  # its exit code, from its parent (mpiwatch.program)
        ("exit_code", ctypes.c_int64),
        ("has_left", ctypes.c_int64),  # whether its parent is ready to end after a report
        ("trace_is_ready", ctypes.c_int64),  # its log has an end; of rank 0: the trace of all is written
        ("cell_state", ctypes.c_int64),  # a CellState
        ("cell_state_since_s", ctypes.c_double),  # on the clock that all processes share
        ("cells_started", ctypes.c_int64),
        ("balance", ctypes.c_int64),  # messages that the last cell sent, minus those that it received
        ("open_requests", ctypes.c_int64),  # that the last cell has left
        ("calls_before_cell", ctypes.c_int64),  # on the world's communicator
        ("joined_word", ctypes.c_uint64),  # of the last call that this rank has seen all ranks reach
        ("waiting_in", ctypes.c_int64),  # a WaitingIn
        ("waiting_since_s", ctypes.c_double),  # on the clock that all processes share, like the next two
        ("mpi_call_since_s", ctypes.c_double),  # since when the main thread has been inside one; 0: it is not
        ("sampled_s", ctypes.c_double),  # when the rank's watchdog last sampled the main thread
        ("mpi_call", ctypes.c_char * NAME_BYTES),  # one that is not watched
        ("can_leave", ctypes.c_int64),  # whether the main thread can leave it: another thread makes it
        ("message_operation", ctypes.c_char * NAME_BYTES),
        ("message_peer", ctypes.c_int64),
        ("message_tag", ctypes.c_int64),
        ("message_number", ctypes.c_int64),  # counts the waits in blocking messages; 0 for a schedule's
        ("has_sends", ctypes.c_int64),  # whether non-blocking sends are under way when the wait begins
        ("has_receives", ctypes.c_int64),
        ("message_purpose", ctypes.c_char * PURPOSE_BYTES),  # what it is part of; empty: the caller's own
        ("message_origin", ctypes.c_char * ORIGIN_BYTES),  # the line that made the request; empty: no request
        ("message_rival", ctypes.c_char * ORIGIN_BYTES),  # an earlier receive that takes the message
        ("message_polls", ctypes.c_int64),  # without success, by a rank that polls itself; 0: it does not
        ("confirmed", ctypes.c_int64),  # see deadlock.confirmation
        ("calls_noted", ctypes.c_int64),
        ("host", ctypes.c_char * HOST_BYTES),  # the machine's name, if there are several machines
        ("place", ctypes.c_char * PLACE_BYTES),  # the student's line at which the rank waits
        ("place_label", ctypes.c_char * FILE_BYTES),  # the innermost file or cell that this text names
        ("place_line", ctypes.c_int64),
        ("running_at", ctypes.c_char * PLACE_BYTES),  # its line when its watchdog last sampled it
        ("running_label", ctypes.c_char * FILE_BYTES),
        ("running_line", ctypes.c_int64),
        ("error", ctypes.c_char * ERROR_BYTES),
        ("error_type", ctypes.c_char * NAME_BYTES),  # the class of an error that the cell has raised
        ("last_words", ctypes.c_char * ERROR_BYTES),  # the call by which the rank ends its process
        ("failed_call", ctypes.c_char * ERROR_BYTES),  # the last collective of this cell that has raised
        ("wanted_in", ctypes.c_int64),  # 1 + the epoch in which the rank asks the hub for a report; see
        ("wanted_reason", ctypes.c_int64),  # ReportRequest
        ("wanted_deadline_s", ctypes.c_double),
        ("wanted_reporter", ctypes.c_int64),
        ("members", ctypes.c_ubyte * MEMBERS_BYTES),  # the communicator used last, a bit for each rank
        ("history", Call * HISTORY_CALLS),
    )


class Row(ctypes.Structure):
    """A communicator: the method that made it, and its members, a bit for each rank of the world."""

    _fields_ = (
        ("made_by", ctypes.c_char * NAME_BYTES),
        ("first_number", ctypes.c_int64),  # its calls count on from here
        ("members", ctypes.c_ubyte * MEMBERS_BYTES),
    )


class Head(ctypes.Structure):
    """What stands above the slots."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("first_number", ctypes.c_int64),  # calls of this epoch count on from here: no number is used twice
        ("report_bytes", ctypes.c_int64),  # of the last report; 0 before the first
        ("machine", ctypes.c_int64),  # the number of the machine whose memory this is
        ("shown_by", ctypes.c_int64),  # 1 + the rank whose parent shows the report of a program; 0: none yet
        ("is_shown", ctypes.c_int64),
        ("hub", ctypes.c_int64),  # 1 + the rank that makes the reports for all machines; 0 without one
        ("words_in_use", ctypes.c_int64),  # from the start of this machine's part
    )


def _own(path: str, flags: int) -> int:
    """Open an existing file of this user's; another user may have put a link to any file in its place."""
    file = os.open(path, (flags & ~os.O_CREAT) | os.O_NOFOLLOW)
    if os.fstat(file).st_uid != os.getuid():
        os.close(file)
        raise PermissionError(errno.EPERM, "belongs to another user", path)
    return file


class FlightRecorder:
    """The flight recorder at `path`, opened by this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = open(path, "r+b", opener=_own)  # noqa: SIM115  (open for as long as the recorder is)
        self.memory = mmap.mmap(self.file.fileno(), 0)
        self.head = Head.from_buffer(self.memory)
        self.size: int = self.head.size
        self.slots = (Slot * self.size).from_buffer(self.memory, ctypes.sizeof(Head))
        self.rows_offset = ctypes.sizeof(Head) + self.size * ctypes.sizeof(Slot)
        self.rows = (Row * (self.size * ROWS_PER_RANK)).from_buffer(self.memory, self.rows_offset)
        self.report_offset = self.rows_offset + ctypes.sizeof(self.rows)
        self.words_offset = self.report_offset + (self.size + 1) * REPORT_BYTES_PER_RANK
        self.words = memoryview(self.memory)[self.words_offset :].cast("Q")
        self._thread_lock = threading.Lock()
        self.reports = ""  # the file to which this process appends the reports that it publishes

    @staticmethod
    def create(size: int) -> str:
        """Create an empty flight recorder for `size` ranks; return its path."""
        of_a_rank = ctypes.sizeof(Slot) + ROWS_PER_RANK * ctypes.sizeof(Row) + 8 * WORDS_PER_RANK
        total = ctypes.sizeof(Head) + size * of_a_rank + (size + 1) * REPORT_BYTES_PER_RANK
        error: OSError | None = None
        folders = [tempfile.gettempdir()]
        if sys.platform == "linux":
            folders.insert(0, "/dev/shm")
        for folder in dict.fromkeys(folders):
            try:
                handle, path = tempfile.mkstemp(prefix=f"{FLIGHT_RECORDER}{os.getpid()}-", dir=folder)
            except OSError as full:
                error = full
                continue
            try:
                with os.fdopen(handle, "wb") as file:
                    # Reserved, not left sparse: a full disk is an error here, and not a SIGBUS later.
                    reserve(file.fileno(), total)
                    file.write(bytes(Head(size=size)))
                return path
            except OSError as full:
                error = full
                os.unlink(path)
        raise OSError(f"cannot create {total} bytes of shared memory: {error}") from error

    def remove(self) -> None:
        """Remove the file; processes that have it open keep the memory."""
        os.unlink(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other processes and threads out. The lock is not reentrant.

        The operating system releases the lock of a process that dies. An interrupt may come just when a
        process has got the lock: so `try` stands before the wait for it.
        """
        with self._thread_lock:
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX)
                yield
            finally:
                fcntl.lockf(self.file, fcntl.LOCK_UN)

    def publish(self, report: Report, first_number: int | None = None) -> None:
        """Leave a report for all processes, and open a new epoch. The caller holds the lock.

        `first_number`: calls on all machines count on from this number; None if there is one machine.
        """
        text = report.to_json()
        end = self.report_offset + len(text)
        assert end <= self.words_offset, f"a report of {len(text)} bytes for {self.size} ranks"
        self.head.report_bytes = 0  # if this process is killed here, there is no report, and not half of one
        self.memory[self.report_offset : end] = text
        self.head.report_bytes = len(text)
        self.head.first_number = self.highest_number() if first_number is None else first_number
        self.head.epoch += 1
        if self.reports:
            # One write per line, so that the lines of several processes do not mix.
            file = os.open(self.reports, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, text + b"\n")
            os.close(file)

    def highest_number(self) -> int:
        """Return the highest number of a call in any row."""
        return max((word >> NUMBER_SHIFT & NUMBER_MASK for word in self.words), default=0)

    def last_report(self) -> Report | None:
        """Return the last report, if there is one. Takes the lock."""
        with self.locked():
            text = self.memory[self.report_offset : self.report_offset + self.head.report_bytes]
        return Report.from_json(text) if text else None

    def is_alive(self, rank: int) -> bool:
        """Return whether a rank's process is alive; if it is on another machine, whether that one says so."""
        slot = self.slots[rank]
        return not slot.has_died and (slot.machine != self.head.machine or alive(slot.pid))

    def set_cell_state(self, rank: int, state: CellState, error: str = "", error_type: str = "") -> None:
        """Note that a rank's cell has started, returned or raised: the error as text, and its class."""
        slot = self.slots[rank]
        slot.error = fit(error, ERROR_BYTES)
        slot.error_type = fit(error_type, NAME_BYTES)
        slot.cells_started += state == CellState.RUNNING
        slot.cell_state_since_s = monotonic()
        slot.cell_state = state

    def last_calls(self, rank: int) -> list[Call]:
        """Return the last calls that a rank has noted, oldest first."""
        slot = self.slots[rank]
        noted = slot.calls_noted
        return [slot.history[i % HISTORY_CALLS] for i in range(max(0, noted - HISTORY_CALLS), noted)]

    def slot_offset(self, rank: int) -> int:
        """Return the offset in memory, in bytes, at which a rank's slot starts."""
        return ctypes.sizeof(Head) + rank * ctypes.sizeof(Slot)


def reserve(file: int, size: int) -> None:
    """Give a new file this size, in bytes, of zeros that the file system has room for."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    os.write(file, bytes(size))  # macOS
    os.lseek(file, 0, os.SEEK_SET)


def fit(text: str, size: int) -> bytes:
    """Return a text in UTF-8 for a field of `size` bytes, cut between characters if it is too long."""
    encoded = text.encode(errors="backslashreplace")  # lone surrogates stand for bytes that are not UTF-8
    return encoded[: size - 1].decode(errors="ignore").encode()


def write_members(slot: Slot | Row, members: Iterable[int]) -> None:
    """Store the members of a communicator, as ranks of the world."""
    bits = sum(1 << rank for rank in set(members))
    slot.members[:] = bits.to_bytes(max(MEMBERS_BYTES, bits.bit_length() // 8 + 1), "little")[:MEMBERS_BYTES]


def read_members(slot: Slot | Row, size: int) -> list[int]:
    """Return the ranks that `write_members` stored; all ranks if it stored none or had too little room."""
    bits = int.from_bytes(bytes(slot.members), "little")
    members = [rank for rank in range(size) if bits >> rank & 1]
    return members if members and size <= 8 * MEMBERS_BYTES else list(range(size))


class ReportRequest(NamedTuple):
    """A request for a report; the fields are arguments of `take_snapshot`."""

    why: Reason | Mismatch
    deadline_s: float
    members: list[int]
    reporter: int


def write_request(slot: Slot, epoch: int, request: ReportRequest) -> None:
    """Ask for a report in this epoch."""
    slot.wanted_deadline_s = request.deadline_s
    slot.wanted_reporter = request.reporter
    slot.wanted_reason = request.why.value
    if isinstance(request.why, Mismatch):
        slot.wanted_reason += MISMATCHES
    write_members(slot, request.members)
    slot.wanted_in = epoch + 1  # written last: it makes the request valid


def read_request(slot: Slot, epoch: int, size: int) -> ReportRequest | None:
    """Return the report that a rank asks for in this epoch, if any."""
    if slot.wanted_in != epoch + 1:
        return None
    number = slot.wanted_reason
    why = Mismatch(number - MISMATCHES) if number > MISMATCHES else Reason(number)
    return ReportRequest(why, slot.wanted_deadline_s, read_members(slot, size), slot.wanted_reporter)
