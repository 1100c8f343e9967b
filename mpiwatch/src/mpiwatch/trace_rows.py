"""Turn the calls of this rank, and the values that they send and receive, into rows of its log."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from itertools import count
from time import monotonic
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpiwatch.arguments import NO_BUFFER, flat, nbytes
from mpiwatch.communicators import WatchedComm
from mpiwatch.places import place_of
from mpiwatch.places import text_of as text_of_error
from mpiwatch.trace_log import OBJECT, ROW, VALUES_BYTES, Kind, LogWriter
from mpiwatch.waiting import HangError, world_ranks

# NumPy's character for a dtype -> the character of Python's `struct` for the same type, in its standard size.
LETTERS = {letter: letter.encode() for letter in "?bBhHiIqQefd"}
LETTERS |= {
    "l": b"q" if np.dtype("l").itemsize == 8 else b"i",
    "L": b"Q" if np.dtype("L").itemsize == 8 else b"I",
}
NO_VALUES = b"\0", 0, b""
NOWHERE = 0, 0, 0
Get_address = MPI.Get_address
MOST_FRAMES = 100  # between a call and the program's first line
# Recording a call takes a few µs. If it takes longer, the system was running another process meanwhile. The
# thread's processor time would exclude that, but reading it takes longer than recording the call.
MOST_OWN_S = 1e-4
ERROR_CHARACTERS = 100

_show = reprlib.Repr()
_show.maxstring = _show.maxother = 60

Shown = tuple[bytes, int, bytes]  # of a buffer: the letter of its dtype, how many values it holds, the first


class Request(NamedTuple):
    """A request that has not been seen to be complete.

    `made`: the tuple that the request carries (see `PolledRequest`). Requests are looked up by its `id`, so a
    reference is kept. `buffer`: the buffer that is sent or received into. `sent` and `root`: the send buffer
    and the root of a persistent collective.
    """

    made: Any
    number: int
    kind: Kind
    comm: WatchedComm
    peer: int
    tag: int
    buffer: Any
    sent: Any = None
    root: int = -1


class Recorder:
    """Writes the calls of this process to a log."""

    def __init__(self, log: LogWriter) -> None:
        self.log = log
        self.numbers = count(1)
        self.requests: dict[int, Request] = {}  # by the identities of their `made`
        self.templates: dict[int, Request] = {}  # persistent requests, in the same way
        self.lines: dict[tuple[int, ...], int] = {}  # numbers of their texts, by the path to a call
        self.codes: list[CodeType] = []  # on these paths: no other code gets the identity of one that is kept
        self.waits: dict[int, int] = {}  # of algorithms, for requests: their numbers by identities of `made`
        self.own_s = 0.0  # that recording has taken
        self.cells = 0  # of a session, that have begun since the recording has
        self.part = ""  # of the recording, to which calls belong now

    def begin(  # noqa: PLR0917
        self,
        kind: Kind,
        operation: str,
        comm: Any,
        peer: int,
        tag: int,
        buffer: Any,
        line: int,
        *,
        sends: bool = True,
        number: int = 0,
        root: int = -1,
        request: int = 0,
    ) -> Call:
        """Write a row as a call begins.

        `peer` and `root` are ranks of `comm`. `buffer`: what the call sends; if it `sends` nothing, what it
        receives into, or None. `line`: see the method `line`.
        """
        entered_s = monotonic()
        log = self.log
        row = log.row()
        number = number or next(self.numbers)
        if row:
            if sends:
                is_object = operation[0].islower()
                letter, items, raw = shown(buffer, is_object)
                size = -1 if is_object else size_of(buffer)
            else:
                letter, items, raw = NO_VALUES
                size = -1
            peer = comm._world_rank(peer) if peer >= 0 else -1
            root = comm._world_rank(root) if root >= 0 else -1
            texts = log.text(operation), log.text(name_of(comm))
            memory = memory_of(buffer)
            began_s = monotonic()
            ROW.pack_into(
                log.memory, row, number, kind, letter, *texts, peer, tag, root, line, 0, size, items, request,
                *memory, began_s, 0.0, raw,
            )  # fmt: skip
            self.own_s += min(monotonic() - entered_s, MOST_OWN_S)
        return Call(self, row, number)

    def complete(  # noqa: PLR0917
        self,
        kind: Kind,
        operation: str,
        about: Request,
        number: int,
        line: int,
        message: tuple[int, int, int],
        values: Shown,
    ) -> None:
        """Write a row for a request that the call with this number, if it is not 0, has seen complete.

        `message`: the other rank (of the world), the tag and the number of bytes.
        """
        now_s = monotonic()
        log = self.log
        row = log.row()
        if row:
            letter, items, raw = values
            peer, tag, size = message
            texts = log.text(operation), log.text(name_of(about.comm))
            number = number or next(self.numbers)
            ROW.pack_into(
                log.memory, row, number, kind, letter, *texts, peer, tag, -1, line, 0, size, items,
                about.number, *NOWHERE, now_s, now_s, raw,
            )  # fmt: skip
            self.own_s += min(monotonic() - now_s, MOST_OWN_S)

    def line(self, frame: FrameType | None) -> int:
        """Return the number of the text that names the program's line which led to a frame; 0 in a part."""
        if self.part:
            return 0
        path = path_to(frame)
        number = self.lines.get(path)
        if number is None:
            began_s = monotonic()
            number = self.lines[path] = self.log.text(place_of(frame))
            self.codes += codes_on_path(frame)
            self.own_s += min(monotonic() - began_s, MOST_OWN_S)
        return number

    def finish(self) -> None:
        """Note that the recording has ended."""
        self.log.finish(monotonic(), self.own_s)


class Call(NamedTuple):
    """A call that is under way, and its row."""

    recorder: Recorder
    row: int
    number: int

    def end(self) -> None:
        """Note that the call has ended."""
        self.recorder.log.end(self.row, monotonic())

    def fail(self, error: BaseException) -> None:
        """Note that the call has raised an error."""
        self.recorder.log.fail(self.row, monotonic(), words_of(error))

    def received(self, comm: Any, status: MPI.Status, values: Any, *, is_object: bool) -> None:
        """Note that the call, a receive, has ended, and what has come."""
        ended_s = monotonic()
        if self.row:
            peer, tag = comm._world_rank(status.source), status.tag
            self.recorder.log.message(
                self.row, peer, tag, status.Get_count(MPI.BYTE), ended_s, shown(values, is_object)
            )
            self.recorder.own_s += min(monotonic() - ended_s, MOST_OWN_S)

    def values(self, buffer: Any, *, is_object: bool) -> None:
        """Note that the call has ended, and what its buffer holds now."""
        ended_s = monotonic()
        if self.row:
            self.recorder.log.values(self.row, ended_s, shown(buffer, is_object))
            self.recorder.own_s += min(monotonic() - ended_s, MOST_OWN_S)


def path_to(frame: FrameType | None) -> tuple[int, ...]:
    """Return the instructions that led to a frame, from the program's first line on, as numbers."""
    path: list[int] = []
    while frame is not None and len(path) < 2 * MOST_FRAMES:
        code = frame.f_code
        path += id(code), frame.f_lasti
        if is_whole_program(code):
            break
        frame = frame.f_back
    return tuple(path)


def codes_on_path(frame: FrameType | None) -> Iterator[CodeType]:
    """Yield the code of the frames that `path_to` names."""
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        yield frame.f_code
        if is_whole_program(frame.f_code):
            return
        frame = frame.f_back


def is_whole_program(code: CodeType) -> bool:
    """Return whether code is that of a file or a cell, and not of a function in it."""
    return code.co_name.startswith(("<module>", "<cell line"))  # IPython has a name of its own for cells


def words_of(error: BaseException) -> str:
    """Return the first words of an error; nothing if it has ended a call that could never return."""
    if isinstance(error, (HangError, KeyboardInterrupt)):
        return ""
    text = text_of_error(error)
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return words if len(words) <= ERROR_CHARACTERS else words[: ERROR_CHARACTERS - 1] + "…"


def shown(buffer: Any, is_object: bool) -> Shown:
    """Return the first values of a buffer, or a text that shows an object."""
    if is_object:
        return text_of(buffer)
    if buffer is None:
        return NO_VALUES
    try:
        return first_values(buffer if type(buffer) is np.ndarray else flat(buffer))
    except Exception:  # mpi4py says what is wrong with a buffer
        return NO_VALUES


def first_values(array: np.ndarray | None) -> Shown:
    """Return the first values of an array, if Python's `struct` can read them."""
    if array is None or not array.flags.forc:
        return NO_VALUES
    dtype = array.dtype
    letter = LETTERS.get(dtype.char, b"")
    if not letter:
        return NO_VALUES
    if array.nbytes > VALUES_BYTES:
        values = array if array.ndim == 1 else array.ravel(order="K")
        return letter, values.size, values[: VALUES_BYTES // dtype.itemsize].tobytes()
    return letter, array.size, array.tobytes(order="A")


def memory_of(buffer: Any) -> tuple[int, int, int]:
    """Return where an array is, how far behind the start of the array that owns the memory, and its bytes."""
    if type(buffer) is not np.ndarray:
        return NOWHERE
    try:
        address: int = Get_address(buffer)
        base = buffer.base
        if base is None:
            return address, 0, buffer.nbytes
        while type(base.base) is np.ndarray:
            base = base.base
        return address, address - Get_address(base), base.nbytes
    except Exception:  # it is not contiguous, or its memory is not an array's
        return NOWHERE


def text_of(thing: Any) -> Shown:
    """Return a text that shows an object, whose own methods may fail."""
    try:
        text = _show.repr(thing)
    except Exception:
        text = f"<{type(thing).__name__}>"
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) > VALUES_BYTES:
        encoded = encoded[: VALUES_BYTES - 3].decode(errors="ignore").encode() + "…".encode()
    return OBJECT.encode(), 1, encoded


def size_of(buffer: Any) -> int:
    """Return how many bytes a buffer has; -1 if that is not known."""
    if type(buffer) is np.ndarray:
        return buffer.nbytes
    if isinstance(buffer, NO_BUFFER):
        return -1
    try:
        return nbytes(buffer)
    except Exception:  # mpi4py says what is wrong with it
        return -1


def name_of(comm: Any) -> str:
    """Return a name of a communicator that is the same on all of its ranks, and no other's of these ranks.

    It is the row of the flight recorder, which another communicator may get once this one is freed, and the
    members. Two communicators with one name are never in use at the same time.
    """
    attributes: dict[str, Any] = comm.__dict__
    name: str | None = attributes.get("_name_in_trace")
    if name is None:
        channel = comm._channel
        members = world_ranks(comm.Get_group()) if channel is None else channel.members
        made_by = comm.made_by or "world"
        row = "?" if channel is None else channel.row
        name = attributes["_name_in_trace"] = f"{made_by}#{row}:{','.join(map(str, members))}"
    return name
