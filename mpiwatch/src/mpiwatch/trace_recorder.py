"""Record the calls of this rank: each message, collective and request, with its times, line and values.

While a recording goes on, the methods of watched communicators and of requests are others, which note a call
before and after they make it. Otherwise these are not there, so recording costs nothing when it is off.

Calls of windows, files and intercommunicators are not recorded.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import reprlib
import secrets
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from time import monotonic
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpiwatch import message_waits, messages, modes
from mpiwatch.arguments import NO_BUFFER, flat, has_counts, in_one_piece, is_in_place, nbytes
from mpiwatch.collectives import outside_wrappers
from mpiwatch.communicators import WatchedComm
from mpiwatch.forwarding import add_methods
from mpiwatch.library_calls import RawIntracomm
from mpiwatch.message_waits import Pending
from mpiwatch.messages import ANY_SOURCE, ANY_TAG, PROC_NULL
from mpiwatch.places import place_in, place_of
from mpiwatch.places import text_of as text_of_error
from mpiwatch.processes import FLIGHT_RECORDER, SHM, print_error
from mpiwatch.report import (
    MAKERS,
    NONBLOCKING_COLLECTIVES,
    NONBLOCKING_RECEIVES,
    NONBLOCKING_SENDS,
    OF_ARRAYS,
    OF_OBJECTS,
    SENDS,
)
from mpiwatch.requests import OF_ONE, WAITS, EndedRequest
from mpiwatch.trace_files import log_file
from mpiwatch.trace_log import EVENTS, OBJECT, ROW, VALUES_BYTES, Kind, LogWriter
from mpiwatch.waiting import HangError, world_ranks

# NumPy's letters of dtypes -> those of Python's `struct` in standard sizes.
LETTERS = {letter: letter.encode() for letter in "?bBhHiIqQefd"}
LETTERS |= {
    "l": b"q" if np.dtype("l").itemsize == 8 else b"i",
    "L": b"Q" if np.dtype("L").itemsize == 8 else b"I",
}
NO_VALUES = b"\0", 0, b""
NOWHERE = 0, 0, 0
Get_address = MPI.Get_address
MOST_FRAMES = 100  # between a call and the program's first line
# A step of recording takes a few µs. A longer one was interrupted: the system ran another process meanwhile.
# (The processor time of the thread would not count that, but to ask for it takes longer than the step.)
MOST_OWN_S = 1e-4
ERROR_CHARACTERS = 100

# To compare the clocks of two machines: at least so many, and more until one has been quick.
ROUND_TRIPS, MOST_ROUND_TRIPS = 20, 300
QUICK_S = 20e-6  # half of a round trip

_show = reprlib.Repr()
_show.maxstring = _show.maxother = 60

Shown = tuple[bytes, int, bytes]  # of a buffer: the letter of its dtype, how many values it holds, the first


class Request(NamedTuple):
    """A request that has not been seen to be complete. `made`: see `PolledRequest`; it keeps its identity."""

    made: Any
    number: int
    kind: Kind
    comm: WatchedComm
    peer: int
    tag: int
    buffer: Any


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

        `message`: the rank of the world that it was sent by or to, its tag and its bytes.
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


recorder: Recorder | None = None  # of this process, while it records

_getframe = sys._getframe


def frame_outside(depth: int) -> FrameType:
    """Return the frame so many levels above the caller's, without those of wrappers."""
    return outside_wrappers(_getframe(depth + 1))


class RecordedComm:
    """The methods that a watched communicator has while calls are recorded.

    The calls that programs make most often take no detour.
    """

    _world_rank: Callable[[int], int]

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        _send(self, "Send", (buf, dest, tag), buf, dest, tag, _getframe(1))

    def Recv(
        self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        status = status or MPI.Status()
        _receive(self, "Recv", (buf, source, tag, status), buf, source, tag, status, _getframe(1))

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        return _start(self, "Isend", Kind.START_SEND, (buf, dest, tag), buf, dest, tag, _getframe(1))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
        return _start(self, "Irecv", Kind.START_RECEIVE, (buf, source, tag), buf, source, tag, _getframe(1))

    def Sendrecv(  # noqa: PLR0917
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        status = status or MPI.Status()
        arguments = sendbuf, dest, sendtag, recvbuf, source, recvtag, status
        sent, received = arguments[:3], arguments[3:6]
        _exchange(self, "Sendrecv", arguments, sent, received, status, _getframe(1))

    def _record_send(self, name: str, given: dict[str, Any]) -> Any:
        """Record a blocking send."""
        buffer = given["buf"] if "buf" in given else given["obj"]
        return _send(self, name, (*given.values(),), buffer, given["dest"], given["tag"], _getframe(2))

    def _record_receive(self, name: str, given: dict[str, Any]) -> Any:
        """Record a blocking receive."""
        status = given["status"] = given["status"] or MPI.Status()
        source, tag, arguments = given["source"], given["tag"], (*given.values(),)
        return _receive(self, name, arguments, given["buf"], source, tag, status, _getframe(2))

    def _record_exchange(self, name: str, given: dict[str, Any]) -> Any:
        """Record a sendrecv or Sendrecv_replace."""
        status = given["status"] = given["status"] or MPI.Status()
        buffer = given["sendobj"] if "sendobj" in given else given["buf"]
        sent = buffer, given["dest"], given["sendtag"]
        received = given.get("recvbuf", buffer), given["source"], given["recvtag"]
        return _exchange(self, name, (*given.values(),), sent, received, status, _getframe(2))

    def _record_matched_probe(self, name: str, given: dict[str, Any]) -> Any:
        """Record a Mprobe or Improbe that has taken a message out of the queue, as its receive."""
        call = _method(self, name)
        active = recorder
        if active is None:
            return call(*given.values())
        status = given["status"] = given["status"] or MPI.Status()
        about = Kind.RECEIVE, name, self, given["source"], given["tag"], None, active.line(_getframe(2))
        if name.lower() == "mprobe":
            noted = active.begin(*about, sends=False)
            message = _made(noted, call, given.values())
        else:
            message = call(*given.values())
            if message is None or message == MPI.MESSAGE_NO_PROC:
                return message
            noted = active.begin(*about, sends=False)
        noted.received(self, status, None, is_object=False)
        return message

    def _record_probe(self, name: str, given: dict[str, Any]) -> Any:
        """Record a Probe."""
        call = _method(self, name)
        active = recorder
        if active is None:
            return call(*given.values())
        line = active.line(_getframe(2))
        noted = active.begin(Kind.PROBE, name, self, given["source"], given["tag"], None, line, sends=False)
        result = _made(noted, call, given.values())
        noted.end()
        return result

    def _record_collective(self, name: str, given: dict[str, Any]) -> Any:
        """Record a blocking collective, or a method that makes a communicator."""
        call = _method(self, name)
        active = recorder
        if active is None:
            return call(*given.values())
        buffer = _sent_in_collective(name, given)
        root = given.get("root", -1)
        root = root if isinstance(root, int) else -1
        line = active.line(_getframe(2))
        noted = active.begin(Kind.COLLECTIVE, name, self, -1, -1, buffer, line, root=root)
        result = _made(noted, call, given.values())
        is_object = name in OF_OBJECTS
        if name in MAKERS or (result is None and is_object):
            noted.end()
        else:
            noted.values(result if is_object else _received_in_collective(name, given), is_object=is_object)
        return result

    def _record_start(self, name: str, given: dict[str, Any]) -> Any:
        """Record the start of a message with a request."""
        is_receive = name in NONBLOCKING_RECEIVES
        kind = Kind.START_RECEIVE if is_receive else Kind.START_SEND
        peer = given["source"] if is_receive else given["dest"]
        buffer = given["buf"] if "buf" in given else given["obj"]
        return _start(self, name, kind, (*given.values(),), buffer, peer, given["tag"], _getframe(2))

    def _record_start_of_both(self, name: str, given: dict[str, Any]) -> Any:
        """Record the start of an Isendrecv or Isendrecv_replace."""
        call = _method(self, name)
        active = recorder
        if active is None:
            return call(*given.values())
        line, number = active.line(_getframe(2)), 0
        if given["dest"] != PROC_NULL:
            buffer = given.get("sendbuf", given.get("buf"))
            sent = active.begin(Kind.START_SEND, name, self, given["dest"], given["sendtag"], buffer, line)
            number = sent.number
            active.log.request(sent.row, number)
            sent.end()
        if given["source"] == PROC_NULL:
            return call(*given.values())
        peer, tag = given["source"], given["recvtag"]
        buffer = given.get("recvbuf", given.get("buf"))
        noted = active.begin(
            Kind.START_RECEIVE, name, self, peer, tag, buffer, line, sends=False, number=number
        )
        request = _made(noted, call, given.values())
        _keep(active, noted, request, Kind.START_RECEIVE, self, peer, tag, buffer)
        return request

    def _record_start_of_collective(self, name: str, given: dict[str, Any]) -> Any:
        """Record the start of a non-blocking collective."""
        call = _method(self, name)
        active = recorder
        if active is None:
            return call(*given.values())
        buffer, root = _sent_in_collective(name, given), given.get("root", -1)
        line = active.line(_getframe(2))
        noted = active.begin(Kind.START_COLLECTIVE, name, self, -1, -1, buffer, line, root=root)
        request = _made(noted, call, given.values())
        result = _received_in_collective(name, given)
        _keep(active, noted, request, Kind.START_COLLECTIVE, self, -1, -1, result)
        return request

    def _record_persistent(self, name: str, given: dict[str, Any]) -> Any:
        """Note what a persistent request sends or receives: it is recorded when it starts."""
        request = _method(self, name)(*given.values())
        active = recorder
        if active is None:
            return request
        if name in NONBLOCKING_COLLECTIVES:
            kind, peer, tag = Kind.START_COLLECTIVE, -1, -1
            buffer = _received_in_collective(name, given)
        else:
            kind = Kind.START_RECEIVE if "source" in given else Kind.START_SEND
            peer = given["source"] if "source" in given else given["dest"]
            tag, buffer = given["tag"], given["buf"]
        made = getattr(request, "made", None)
        if made is not None and peer != PROC_NULL:
            active.templates[id(made)] = Request(made, 0, kind, self, peer, tag, buffer)  # type: ignore[arg-type]
        return request


def _send(  # noqa: PLR0917
    comm: Any, name: str, arguments: tuple[Any, ...], buffer: Any, dest: int, tag: int, frame: FrameType
) -> Any:
    """Record a blocking send; `frame`: that of its caller."""
    call = _method(comm, name)
    active = recorder
    if active is None or dest == PROC_NULL:
        return call(*arguments)
    noted = active.begin(Kind.SEND, name, comm, dest, tag, buffer, active.line(frame))
    result = _made(noted, call, arguments)
    noted.end()
    return result


def _receive(  # noqa: PLR0917
    comm: Any,
    name: str,
    arguments: tuple[Any, ...],
    buffer: Any,
    source: int,
    tag: int,
    status: MPI.Status,
    frame: FrameType,
) -> Any:
    """Record a blocking receive; `frame`: that of its caller."""
    call = _method(comm, name)
    active = recorder
    if active is None or source == PROC_NULL:
        return call(*arguments)
    line = active.line(frame)
    noted = active.begin(Kind.RECEIVE, name, comm, source, tag, buffer, line, sends=False)
    result = _made(noted, call, arguments)
    is_object = name == "recv"
    noted.received(comm, status, result if is_object else buffer, is_object=is_object)
    return result


def _exchange(  # noqa: PLR0917
    comm: Any,
    name: str,
    arguments: tuple[Any, ...],
    sent: tuple[Any, int, int],
    received: tuple[Any, int, int],
    status: MPI.Status,
    frame: FrameType,
) -> Any:
    """Record a call that sends and receives: two rows with one number.

    `sent` and `received`: the buffer, the other rank and the tag. `frame`: that of its caller.
    """
    call = _method(comm, name)
    active = recorder
    if active is None:
        return call(*arguments)
    line, send, receive = active.line(frame), None, None
    buffer, dest, tag = sent
    if dest != PROC_NULL:
        send = active.begin(Kind.SEND, name, comm, dest, tag, buffer, line)
    into, source, tag = received
    if source != PROC_NULL:
        number = send.number if send is not None else 0
        receive = active.begin(Kind.RECEIVE, name, comm, source, tag, into, line, sends=False, number=number)
    try:
        result = call(*arguments)
    except BaseException as error:
        for noted in filter(None, (send, receive)):
            noted.fail(error)
        raise
    if send is not None:
        send.end()
    if receive is not None:
        is_object = name == "sendrecv"
        receive.received(comm, status, result if is_object else into, is_object=is_object)
    return result


def _start(  # noqa: PLR0917
    comm: Any,
    name: str,
    kind: Kind,
    arguments: tuple[Any, ...],
    buffer: Any,
    peer: int,
    tag: int,
    frame: FrameType,
) -> Any:
    """Record the start of a message with a request; `frame`: that of its caller."""
    call = _method(comm, name)
    active = recorder
    if active is None or peer == PROC_NULL:
        return call(*arguments)
    sends = kind is Kind.START_SEND
    noted = active.begin(kind, name, comm, peer, tag, buffer, active.line(frame), sends=sends)
    request = _made(noted, call, arguments)
    _keep(active, noted, request, kind, comm, peer, tag, buffer)
    return request


def _method(comm: Any, name: str) -> Callable[..., Any]:
    """Return the method that a communicator has while calls are not recorded."""
    before = _methods_before.get(name)
    if before is not None:
        method: Callable[..., Any] = before.__get__(comm)
    else:
        method = getattr(super(_recorded_class, comm), name)
    return method


def _made(noted: Call, call: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    """Make a call; if it raises an error, note that."""
    try:
        return call(*arguments)
    except BaseException as error:
        noted.fail(error)
        raise


def _sent_in_collective(name: str, given: dict[str, Any]) -> Any:
    """Return what this rank brings to a collective."""
    sent = next((given[key] for key in ("sendbuf", "sendobj", "obj", "buf") if key in given), None)
    if is_in_place(sent) and "sendbuf" in given:
        return _received_in_collective(name, given)
    return in_one_piece(sent) if has_counts(name, 0) else sent


def _received_in_collective(name: str, given: dict[str, Any]) -> Any:
    """Return the buffer in which this rank gets the result of a collective."""
    received = given.get("recvbuf", given.get("buf"))
    return in_one_piece(received) if has_counts(name, -1) else received


def _keep(  # noqa: PLR0917
    active: Recorder, noted: Call, request: Any, kind: Kind, comm: Any, peer: int, tag: int, buffer: Any
) -> None:
    """Note that a call has started a request, and remember what that is until it is complete."""
    active.log.request(noted.row, noted.number)
    noted.end()
    made = getattr(request, "made", None)
    if made is not None:
        active.requests[id(made)] = Request(made, noted.number, kind, comm, peer, tag, buffer)


BOTH = "Isendrecv", "Isendrecv_replace"
PERSISTENT = [
    name
    for name in (*NONBLOCKING_SENDS, *NONBLOCKING_RECEIVES, *NONBLOCKING_COLLECTIVES)
    if name.endswith("_init")
]
for _via, _names in {
    "_record_send": [name for name in SENDS if name not in (*NONBLOCKING_SENDS, "Send")],
    "_record_receive": ["recv"],
    "_record_exchange": ["Sendrecv_replace", "sendrecv"],
    "_record_matched_probe": ["Mprobe", "mprobe", "Improbe", "improbe"],
    "_record_probe": ["Probe", "probe"],
    "_record_collective": [*OF_ARRAYS, *OF_OBJECTS, *MAKERS],
    "_record_start": [
        name
        for name in (*NONBLOCKING_SENDS, *NONBLOCKING_RECEIVES)
        if name not in (*PERSISTENT, *BOTH, "Isend", "Irecv")
    ],
    "_record_start_of_both": BOTH,
    "_record_start_of_collective": [name for name in NONBLOCKING_COLLECTIVES if name not in PERSISTENT],
    "_record_persistent": PERSISTENT,
}.items():
    add_methods(RecordedComm, _names, _via, RawIntracomm, by_name=True)


# Requests


def _recording_wait(name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wait for one request that records what it has completed."""

    def recorded(self: Any, status: MPI.Status | None = None) -> Any:
        active = recorder
        about = _taken(active, self)
        if active is None or about is None:
            return wait(self, status)
        status = status or MPI.Status()
        line = active.line(_getframe(1))
        noted = _begin_wait(active, name, about, line)
        try:
            result = wait(self, status)
        except BaseException as error:
            active.requests[id(about.made)] = about
            noted.fail(error)
            raise
        noted.end()
        _note_complete(active, about, name, noted.number, status, result, line)
        return result

    return recorded


def _recording_test(name: str, test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test of one request that records what it has completed."""

    def recorded(self: Any, status: MPI.Status | None = None) -> Any:
        active = recorder
        about = _taken(active, self)
        if active is None or about is None:
            return test(self, status)
        status = status or MPI.Status()
        is_done, thing = False, None
        try:
            result = test(self, status)
            is_done, thing = (result, None) if name == "Test" else result
        finally:
            if not is_done:
                active.requests[id(about.made)] = about
        if is_done:
            number = active.waits.get(id(about.made), 0)
            _note_complete(active, about, name, number, status, thing, active.line(_getframe(1)))
        return result

    return recorded


def _recording_wait_for_several(name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wait for several requests, or a test, that records what it has completed."""
    takes_one_status, is_test = name.endswith("any"), name.lower().startswith("test")

    def recorded(
        cls: Any, requests: Sequence[Any], statuses: Any = None, status: MPI.Status | None = None
    ) -> Any:
        active = recorder
        taken = [_taken(active, request) for request in requests]
        given = status if statuses is None else statuses
        first = next(filter(None, taken), None)
        if active is None or first is None:
            return wait(requests, given)
        if given is None:
            given = MPI.Status() if takes_one_status else [MPI.Status() for _ in requests]
        line = active.line(_getframe(1))
        noted = None if is_test else _begin_wait(active, name, first, line)
        completed: list[tuple[int, Any]] = []
        try:
            result = wait(requests, given)
            completed = _completed_by(name, result, len(taken))
        except BaseException as error:
            if noted is not None:
                noted.fail(error)
            raise
        finally:
            indices = {index for index, _ in completed}
            for index, about in enumerate(taken):
                if about is not None and index not in indices:
                    active.requests[id(about.made)] = about
        if noted is not None:
            noted.end()
        number = noted.number if noted is not None else 0
        filled: Any = [given] if takes_one_status else given
        for place, (index, thing) in enumerate(completed):
            about = taken[index]
            if about is not None:
                _note_complete(active, about, name, number, filled[place], thing, line)
        return result

    return recorded


def _begin_wait(active: Recorder, name: str, about: Request, line: int) -> Call:
    """Write a row as a wait begins."""
    return active.begin(
        Kind.WAIT, name, about.comm, about.peer, about.tag, None, line, sends=False, request=about.number
    )


def _known(active: Recorder | None, request: Any) -> Request | None:
    """Return what is known of a request that has not been completed."""
    made = getattr(request, "made", None)
    return active.requests.get(id(made)) if active is not None and made is not None else None


def _taken(active: Recorder | None, request: Any) -> Request | None:
    """Return what is known of a request, and forget it: a wait of the program may call others inside."""
    made = getattr(request, "made", None)
    return active.requests.pop(id(made), None) if active is not None and made is not None else None


def _note_complete(  # noqa: PLR0917
    active: Recorder, about: Request, name: str, number: int, status: MPI.Status, thing: Any, line: int
) -> None:
    """Write a row for a request that a wait or a test has completed; `thing`: an object that it received."""
    peer = about.comm._world_rank(about.peer) if about.peer >= 0 else -1
    message, values = (peer, about.tag, -1), NO_VALUES
    operation = about.made[0]
    if status.Is_cancelled():
        kind = Kind.CANCELLED
    else:
        kind = Kind.COMPLETE
        # MPICH's status of an Isendrecv says nothing, and that of a persistent request may be empty.
        is_known = status.source >= 0 and operation not in BOTH
        if about.kind is Kind.START_RECEIVE and is_known:
            message = about.comm._world_rank(status.source), status.tag, status.Get_count(MPI.BYTE)
            is_object = name[0].islower() and not isinstance(about.buffer, np.ndarray)
            values = shown(thing if is_object else about.buffer, is_object)
        elif operation[0].isupper():  # of a send, whether it still holds them
            values = shown(about.buffer, False)
    active.complete(kind, name, about, number, line, message, values)


def _record_wait(wait: Callable[[], None], requests: Sequence[Any], pending: Pending | None) -> None:
    """Record a wait that is no call of the program, but of an algorithm on top."""
    active = recorder
    about = next(filter(None, (_known(active, request) for request in requests)), None)
    if active is not None and about is not None:
        noted = _begin_wait(active, "Wait", about, active.line(_getframe(2)))
        active.waits[id(about.made)] = noted.number
    elif active is not None and pending is not None and isinstance(pending.comm, WatchedComm):
        peer = next(iter((*pending.receives, *pending.sends)), -1)
        line = active.line(_getframe(2))
        noted = active.begin(Kind.WAIT, "Wait", pending.comm, peer, -1, None, line, sends=False)
    else:  # inside a call that is recorded itself
        wait()
        return
    try:
        _made(noted, wait, ())
    finally:
        if about is not None:
            del active.waits[id(about.made)]
    noted.end()


def _completed_by(name: str, result: Any, number: int) -> list[tuple[int, Any]]:
    """Return which requests of a wait's or a test's arguments it has completed, and the objects received."""
    is_test = name.lower().startswith("test")
    if name.endswith("any"):
        index, *rest = result if isinstance(result, tuple) else (result,)
        is_done = rest[0] if is_test else True
        return [(index, rest[-1] if rest else None)] if is_done and index >= 0 else []
    if name.endswith("some"):
        indices, things = result if name[0].islower() else (result, None)
        return [(index, things[place] if things else None) for place, index in enumerate(indices or [])]
    is_done, things = result if isinstance(result, tuple) else (result, result)
    if is_test and not is_done:
        return []
    return [(index, things[index] if isinstance(things, list) else None) for index in range(number)]


def _recording_start(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `Start` of a persistent request that records what it starts."""

    def recorded(self: Any) -> None:
        _note_start(self, _getframe(1))
        start(self)

    return recorded


def _recording_start_of_all(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `Startall` that records what it starts."""

    def recorded(cls: Any, requests: Sequence[Any]) -> None:
        for request in requests:
            _note_start(request, _getframe(1))
        start(requests)

    return recorded


def _note_start(request: Any, frame: FrameType) -> None:
    """Write a row for a persistent request that starts."""
    made: Any = getattr(request, "made", None)
    active = recorder
    template = active.templates.get(id(made)) if active is not None else None
    if active is None or template is None:
        return
    kind, comm, peer, tag, buffer = template[2:]
    sends, line = kind is not Kind.START_RECEIVE, active.line(frame)
    noted = active.begin(kind, made[0], comm, peer, tag, buffer, line, sends=sends)
    active.log.request(noted.row, noted.number)
    noted.end()
    active.requests[id(made)] = template._replace(number=noted.number)


# Begin and end

_replaced: list[tuple[type, str, Any]] = []  # what recording has put others in the place of
# The class whose methods record calls, and those of its own that they take the place of. These stay when a
# recording ends: a thread may be on its way through a method that records.
_recorded_class: type = WatchedComm
_methods_before: dict[str, Any] = {}


def begin(path: str, world: Any, capacity: int = EVENTS) -> None:
    """Record the calls of this rank from now on in a new file at `path`. Not collective.

    `world`: the watched communicator of the world.
    """
    global recorder, _recorded_class  # noqa: PLW0603
    if recorder is not None:
        end()
    machine = machines_of(world)[world.rank]
    recorder = Recorder(LogWriter(path, world.rank, world.size, monotonic(), capacity, machine))
    # Strict mode has a class of its own, whose methods hide those of the class it derives from.
    mode = modes.registered
    _recorded_class = WatchedComm if mode is None else type(mode.world)
    _methods_before.clear()
    for name, method in vars(RecordedComm).items():
        if callable(method) and name != "__init__":
            before = vars(_recorded_class).get(name)
            if before is not None:
                _methods_before[name] = before
            _replaced.append((_recorded_class, name, before))
            setattr(_recorded_class, name, method)
    for kind in _with_derived(MPI.Request):  # MPI.Prequest among them
        _replace_waits(kind)
    messages._getframe = frame_outside  # type: ignore[assignment]
    message_waits.record_wait = _record_wait
    atexit.register(_finish)


def begin_in_program(trace: str, world: Any) -> None:
    """Record the calls of this rank of a program from now on. Collective.

    `trace`: the file that is made of the ranks' logs in the end.
    """
    offset_s, error_s = clock_offset(world)
    path = log_file(trace, world.rank)
    with contextlib.suppress(OSError):
        os.unlink(path)  # from an earlier run that was killed
    try:
        begin(path, world)
    except OSError as error:
        print_error(f"mpiwatch: rank {world.rank} is not recorded: {error.strerror}: {path}\n")
    if recorder is not None:
        recorder.log.set_clock(offset_s, error_s)


def begin_in_session(world: Any) -> str:
    """Record the calls of this rank's next cell in a file of its own; return the path.

    Collective if the ranks are on several machines: they compare their clocks.
    """
    offset_s, error_s = clock_offset(world)
    # Its supervisor removes what has a name like this, should this process be killed.
    folder = SHM if os.path.isdir(SHM) else tempfile.gettempdir()
    path = f"{folder}/{FLIGHT_RECORDER}{os.getpid()}-recording-{secrets.token_hex(8)}"
    begin(path, world)
    if recorder is not None:
        recorder.log.set_clock(offset_s, error_s)
    return path


def end_in_session() -> bytes:
    """End the recording, remove its file, and return its content."""
    path = recorder.log.path if recorder is not None else ""
    content = end()
    with contextlib.suppress(OSError):
        os.unlink(path)
    return content


def begin_cell() -> None:
    """Note that a cell of a session begins: the first one after `begin_in_session` is the one to record."""
    if recorder is not None:
        recorder.cells += 1
        if recorder.cells == 1:
            recorder.log.begin(monotonic())


def end_cell(error: BaseException | None) -> None:
    """Note that the cell which is recorded has ended, with an error or well."""
    if recorder is not None and recorder.cells == 1:
        if error is not None:
            note_error(error)
        recorder.finish()


def note_error(error: BaseException) -> None:
    """Note that what this rank runs ends with an error, unless that has ended a call."""
    words = words_of(error)
    if recorder is None or not words:
        return
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    number = next(recorder.numbers)
    recorder.log.note(Kind.RAISED, number, "error", place_in(frames[::-1]), monotonic(), words)


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Let the calls inside the block belong to a part of the recording, without their lines.

    The recording itself then begins with the end of the block. Without a recording, do nothing.
    """
    active = recorder
    if active is None:
        yield
        return
    active.part = name
    active.log.note(Kind.PART, 0, name, "", monotonic())
    try:
        yield
    finally:
        active.part = ""
        active.own_s = 0.0
        active.log.begin(monotonic())
        active.log.note(Kind.PART, 0, "", "", monotonic())


def machines_of(world: Any) -> list[int]:
    """Return the number of each rank's machine."""
    watch = world.watch
    return watch.machines if watch is not None else [0] * world.size


def clock_offset(world: Any) -> tuple[float, float]:
    """Return what to add to this rank's clock to get that of rank 0, and how far that may be wrong.

    Collective. Processes of one machine share a clock. The first rank of each other machine asks rank 0 for
    the time; the answer that comes back soonest is the best one, and is wrong by half of its round trip at
    most. On one machine, no rank waits for another.
    """
    machines = machines_of(world)
    firsts = [machines.index(machine) for machine in dict.fromkeys(machines)]
    if len(firsts) == 1:
        return 0.0, 0.0
    channel = RawIntracomm(world).Dup()
    best = 0.0, 0.0
    for first in firsts[1:]:
        if world.rank == 0:
            while channel.recv(source=first):
                channel.send(monotonic(), dest=first)
        elif world.rank == first:
            best = _best_round_trip(channel)
            channel.send(False, dest=0)
    offsets = channel.allgather(best)
    channel.Free()
    return offsets[machines.index(machines[world.rank])]


def _best_round_trip(channel: Any) -> tuple[float, float]:
    """Ask rank 0 for the time until an answer comes quickly; return what the quickest one says."""
    best = _round_trip(channel)
    for number in range(1, MOST_ROUND_TRIPS):
        if number >= ROUND_TRIPS and best[1] < QUICK_S:
            break
        best = min(best, _round_trip(channel), key=lambda trip: trip[1])
    return best


def _round_trip(channel: Any) -> tuple[float, float]:
    """Ask rank 0 for the time; return its clock minus this one, and half of the time that it took."""
    asked_s = monotonic()
    channel.send(True, dest=0)
    theirs_s = channel.recv(source=0)
    half_s = (monotonic() - asked_s) / 2
    return theirs_s - (asked_s + half_s), half_s


def _with_derived(kind: type) -> Iterator[type]:
    """Yield a class of requests and those derived from it, whose waits are recorded, too."""
    yield kind
    kinds: list[type] = kind.__subclasses__()
    for derived in kinds:
        if derived is not EndedRequest:
            yield from _with_derived(derived)


def _replace_waits(kind: type) -> None:
    """Let a class of requests record its waits and tests."""
    for wait_name in WAITS:
        for name in (wait_name, wait_name.replace("Wait", "Test").replace("wait", "test")):
            if name not in vars(kind):
                continue
            before = getattr(kind, name)
            if wait_name in OF_ONE:
                record = _recording_wait if name == wait_name else _recording_test
                recorded: Any = record(name, before)
            else:
                recorded = classmethod(_recording_wait_for_several(name, before))
            _replace(kind, name, recorded)
    if "Start" in vars(kind):
        _replace(kind, "Start", _recording_start(vars(kind)["Start"]))
        _replace(kind, "Startall", classmethod(_recording_start_of_all(getattr(kind, "Startall"))))  # noqa: B009


def _replace(kind: type, name: str, method: Any) -> None:
    _replaced.append((kind, name, vars(kind)[name]))
    setattr(kind, name, method)


def end() -> bytes:
    """End the recording; return the content of its log."""
    global recorder  # noqa: PLW0603
    if recorder is None:
        return b""
    while _replaced:
        kind, name, before = _replaced.pop()
        if before is None:
            delattr(kind, name)
        else:
            setattr(kind, name, before)
    messages._getframe = sys._getframe
    message_waits.record_wait = None
    recorder.finish()
    content = recorder.log.content()
    recorder = None  # threads that are still inside calls keep its memory until these end
    atexit.unregister(_finish)
    return content


def _finish() -> None:
    """Note in the log that the program has ended."""
    if recorder is not None:
        recorder.finish()
