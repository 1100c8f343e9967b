"""Record the calls of this rank: each message, collective and request, with its times, line and values.

While a recording goes on, the methods of watched communicators and of requests are others, which note a call
before and after they make it. Otherwise these are not there, so recording costs nothing when it is off.

Calls of windows, files and intercommunicators are not recorded.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from types import FrameType
from typing import Any

from mpi4py import MPI

from mpiwatch import message_waits, messages, modes
from mpiwatch.arguments import has_counts, in_one_piece, is_in_place
from mpiwatch.collectives import outside_wrappers
from mpiwatch.communicators import WatchedComm
from mpiwatch.forwarding import add_methods
from mpiwatch.library_calls import RawIntracomm
from mpiwatch.message_waits import Pending
from mpiwatch.messages import ANY_SOURCE, ANY_TAG, PROC_NULL
from mpiwatch.places import place_in
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
from mpiwatch.trace_clock import clock_offset, machines_of
from mpiwatch.trace_files import log_file
from mpiwatch.trace_log import EVENTS, Kind, LogWriter
from mpiwatch.trace_rows import NO_VALUES, Call, Recorder, Request, shown, words_of

recorder: Recorder | None = None  # of this process, while it records

_getframe = sys._getframe


def frame_outside(depth: int) -> FrameType:
    """Return the frame so many levels above the caller's, without those of wrappers."""
    return outside_wrappers(_getframe(depth + 1))


class RecordedComm:
    """The methods that a watched communicator has while calls are recorded.

    The calls that programs make most often take no detour.
    """

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
        if active is None or given["source"] == PROC_NULL:
            return call(*given.values())
        status = given["status"] = given["status"] or MPI.Status()
        about = Kind.RECEIVE, name, self, given["source"], given["tag"], None, active.line(_getframe(2))
        if name.lower() == "mprobe":
            noted = active.begin(*about, sends=False)
            message = _call_and_note(noted, call, given.values())
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
        result = _call_and_note(noted, call, given.values())
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
        result = _call_and_note(noted, call, given.values())
        is_object = name in OF_OBJECTS
        received = result if is_object else _received_in_collective(name, given)
        if name in MAKERS or received is None:  # what this rank has sent stays in the row
            noted.end()
        else:
            noted.values(received, is_object=is_object)
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
        line, sent, received = active.line(_getframe(2)), None, None
        dest, send_tag, send_buffer = given["dest"], given["sendtag"], given.get("sendbuf", given.get("buf"))
        if dest != PROC_NULL:
            sent = active.begin(Kind.START_SEND, name, self, dest, send_tag, send_buffer, line)
        source, tag, buffer = given["source"], given["recvtag"], given.get("recvbuf", given.get("buf"))
        if source != PROC_NULL:
            number = sent.number if sent is not None else 0
            received = active.begin(
                Kind.START_RECEIVE, name, self, source, tag, buffer, line, sends=False, number=number
            )
        try:
            request = call(*given.values())
        except BaseException as error:
            for noted in filter(None, (sent, received)):
                noted.fail(error)
            raise
        if sent is not None:
            _keep(active, sent, request, Kind.START_SEND, self, dest, send_tag, send_buffer)
        if received is not None:  # there is one request: what is kept of the receive replaces the send's
            _keep(active, received, request, Kind.START_RECEIVE, self, source, tag, buffer)
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
        request = _call_and_note(noted, call, given.values())
        result = _received_in_collective(name, given)
        _keep(active, noted, request, Kind.START_COLLECTIVE, self, -1, -1, result)
        return request

    def _record_persistent(self, name: str, given: dict[str, Any]) -> Any:
        """Note what a persistent request sends or receives: it is recorded when it starts."""
        request = _method(self, name)(*given.values())
        active = recorder
        if active is None:
            return request
        sent = None
        if name in NONBLOCKING_COLLECTIVES:
            kind, peer, tag = Kind.START_COLLECTIVE, -1, -1
            sent, buffer = _sent_in_collective(name, given), _received_in_collective(name, given)
        else:
            kind = Kind.START_RECEIVE if "source" in given else Kind.START_SEND
            peer = given["source"] if "source" in given else given["dest"]
            tag, buffer = given["tag"], given["buf"]
        made = getattr(request, "made", None)
        # A collective has the peer -1, which is MPICH's PROC_NULL.
        if made is not None and (kind is Kind.START_COLLECTIVE or peer != PROC_NULL):
            comm: Any = self
            root = given.get("root", -1)
            active.templates[id(made)] = Request(made, 0, kind, comm, peer, tag, buffer, sent, root)
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
    result = _call_and_note(noted, call, arguments)
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
    result = _call_and_note(noted, call, arguments)
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
    request = _call_and_note(noted, call, arguments)
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


def _call_and_note(noted: Call, call: Callable[..., Any], arguments: Iterable[Any]) -> Any:
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
            is_object = operation[0].islower() and name[0].islower()
            values = shown(thing if is_object else about.buffer, is_object)
        elif operation[0].isupper():  # a send, whose buffer may have changed, or a collective's result
            values = shown(about.buffer, False)
    active.complete(kind, name, about, number, line, message, values)


def _record_wait_of_algorithm(
    wait: Callable[[], None], requests: Sequence[Any], pending: Pending | None
) -> None:
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
    else:  # nothing is recorded, or the program's own wait around this one is
        wait()
        return
    try:
        _call_and_note(noted, wait, ())
    finally:
        if about is not None:
            del active.waits[id(about.made)]
    noted.end()


def _completed_by(name: str, result: Any, how_many: int) -> list[tuple[int, Any]]:
    """Return which of so many requests a wait or a test has completed, and the objects received.

    mpi4py returns: Waitany the index, Waitsome the indices or None, Waitall True; waitany and waitsome also
    the received objects, waitall these alone. Testany and testany insert a flag after the index, and Testall
    and testall begin with it.
    """
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
    return [(index, things[index] if isinstance(things, list) else None) for index in range(how_many)]


def _recording_start(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `Start` of a persistent request that records what it starts."""

    def recorded(self: Any) -> None:
        _record_starts([self], _getframe(1), lambda: start(self))

    return recorded


def _recording_start_of_all(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `Startall` that records what it starts."""

    def recorded(cls: Any, requests: Sequence[Any]) -> None:
        _record_starts(requests, _getframe(1), lambda: start(requests))

    return recorded


def _record_starts(requests: Sequence[Any], frame: FrameType, start: Callable[[], object]) -> None:
    """Start persistent requests; write a row for each."""
    active = recorder
    if active is None:
        start()
        return
    line = active.line(frame)
    begun = [_begin_start(active, request, line) for request in requests]
    try:
        start()
    except BaseException as error:
        for noted in filter(None, begun):
            noted.fail(error)
        raise
    for request, call in zip(requests, begun, strict=True):
        if call is not None:
            active.log.request(call.row, call.number)
            call.end()
            template = active.templates[id(request.made)]
            active.requests[id(request.made)] = template._replace(number=call.number)


def _begin_start(active: Recorder, request: Any, line: int) -> Call | None:
    """Write a row as a persistent request starts; do nothing if it is not known."""
    template = active.templates.get(id(getattr(request, "made", None)))
    if template is None:
        return None
    made, _, kind, comm, peer, tag, buffer, sent, root = template
    sends = kind is not Kind.START_RECEIVE
    buffer = sent if kind is Kind.START_COLLECTIVE else buffer
    return active.begin(kind, made[0], comm, peer, tag, buffer, line, sends=sends, root=root)


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
        if callable(method):
            before = vars(_recorded_class).get(name)
            if before is not None:
                _methods_before[name] = before
            _replaced.append((_recorded_class, name, before))
            setattr(_recorded_class, name, method)
    for kind in _with_derived(MPI.Request):  # MPI.Prequest among them
        _replace_waits(kind)
    messages._getframe = frame_outside  # type: ignore[assignment]
    message_waits.record_wait = _record_wait_of_algorithm
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
