"""Sends, receives and probes that can be interrupted, and end with a report if the other rank takes no part.

Blocking calls are done by their non-blocking twins, which are polled.

`_start`, `_receive_object` and `_probe` are the layer that moves messages; strict mode replaces them.
"""

# ruff: noqa: PLR0917 (signatures as mpi4py has them; every nanosecond counts)

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from time import sleep
from types import FrameType
from typing import Any, Literal, NamedTuple

from mpi4py import MPI
from numpy import ndarray

from mpiwatch.arguments import check_buffers, check_message, flat, nbytes, parse, what_it_holds
from mpiwatch.collectives import ChannelComm
from mpiwatch.forwarding import add_methods
from mpiwatch.message_waits import MessageWait, polls
from mpiwatch.places import is_own_code, place_of_instruction
from mpiwatch.report import NONBLOCKING_COLLECTIVES, NONBLOCKING_RECEIVES, NONBLOCKING_SENDS, PROBES, SENDS
from mpiwatch.requests import polled
from mpiwatch.under_way import NO_PEER, cancel, keep, traffic, under_way
from mpiwatch.waiting import Watch, wait_until

LOOKS, LOOK_S = 10, 0.001  # for messages that are still on their way, and the time between two

# By ranks of the world: the communicator's row, source, destination, tag, and the line of the send or "".
LeftMessage = tuple[int, int, int, int, str]

ANY_SOURCE, ANY_TAG, PROC_NULL = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL

NUMBER_TYPES = "?bBhHiIlLqQfdgFDG"  # NumPy's characters for dtypes that MPI has, too

_getframe = sys._getframe  # while calls are recorded, one that skips the recorder's frames
_status = MPI.Status()  # for a receive whose caller asks for none


class MessageError(MPI.Exception):  # so that a program can catch it as mpi4py's own
    """A message that does not fit the buffer of its receive, with the ranks, the call and the sizes."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code)
        self.text = text

    def __str__(self) -> str:
        return self.text


def too_long(error: MPI.Exception, sent_to: str, buffer: Any, status: MPI.Status) -> MessageError:
    """Return the error for a message that is longer than its buffer; part of it is lost."""
    room, is_array = nbytes(buffer), isinstance(buffer, ndarray)
    # The status has what was sent (Open MPI) or what was received; MPICH's text may have both.
    said = re.findall(r"(\d+) bytes received but buffer size is (\d+)", str(error))
    sizes = [status.Get_count(MPI.BYTE), *(int(number) for pair in said for number in pair)]
    sent = f"{max(sizes)} bytes" if max(sizes) > room else "more bytes than fit"
    return MessageError(
        error.Get_error_code(),
        f"{sent_to} was sent {sent} by rank {status.source} (tag {status.tag}), but its buffer "
        f"has room for {what_it_holds(buffer) if is_array else f'{room} bytes'}",
    )


class WatchedMessages(ChannelComm):
    """Send, receive and the like; below the class, methods of mpi4py are led to these methods."""

    # The layer below

    def _start(self, name: str, buf: Any, peer: int, tag: int) -> MPI.Request:
        """Start a send or a receive of this name by its non-blocking twin."""
        if name == "Send":  # this and Recv are called most often, and need no look-up
            return super().Isend(buf, peer, tag)
        if name == "Recv":  # as bytes: `_receive` says if they are no whole number of items
            as_bytes = type(buf) is ndarray and buf.dtype.char in NUMBER_TYPES
            return super().Irecv([buf, MPI.BYTE] if as_bytes else buf, peer, tag)
        request: MPI.Request = getattr(super(), STARTED_BY.get(name, name))(buf, peer, tag)
        return request

    def _receive_object(self, name: str, source: int, tag: int, status: Any, sends_too: bool = False) -> Any:
        """Wait for a message of a pickled object, and return the object."""
        return self._matched(name, source, tag, status, sends_too).recv(status)

    def _probe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Any:
        """Do an Iprobe or Improbe."""
        return getattr(super(), name)(source, tag, status)

    # Blocking calls; those that programs make most often take no detour

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Send", buf, dest)
        self._send("Send", self._start("Send", buf, dest, tag), dest, tag, _getframe(1))

    def Recv(
        self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Recv", buf, source)
        self._receive("Recv", self._start("Recv", buf, source, tag), buf, source, tag, status)

    def _do_send(self, name: str, buf: Any, dest: int, tag: int) -> None:
        if name[0].isupper() and type(buf) is not ndarray:
            check_message(self, name, buf, dest)
        self._send(name, self._start(name, buf, dest, tag), dest, tag, _getframe(2))

    def _do_bsend(self, name: str, buf: Any, dest: int, tag: int) -> None:
        if name == "Bsend":
            check_message(self, name, buf, dest)
        under_way.has_untracked_sends = True  # the message is in a buffer of MPI
        getattr(super(), name)(buf, dest, tag)

    def _do_recv(self, name: str, buf: Any, source: int, tag: int, status: MPI.Status | None) -> Any:
        if buf is not None:
            super().recv(buf, PROC_NULL)  # receives nothing; mpi4py warns that it ignores `buf`
        return self._receive_object(name, source, tag, status)

    def _do_sendrecv_of_object(
        self, name: str, obj: Any, dest: int, sendtag: int, buf: Any, source: int, tag: int, status: Any
    ) -> Any:
        sent = self._start("send", obj, dest, sendtag)
        try:
            received = self._receive_object(name, source, tag, status, dest != PROC_NULL)
        except BaseException:
            keep(sent)
            raise
        self._send("send", sent, dest, sendtag, _getframe(2))
        return received

    def _do_sendrecv(
        self,
        name: str,
        sent: Any,
        dest: int,
        sendtag: int,
        buf: Any,
        source: int,
        tag: int,
        status: Any,
        at: FrameType | None = None,
    ) -> None:
        """Send and receive at once; `at`: the frame of the program, by default of this method's caller."""
        check_message(self, name, sent, dest)
        check_message(self, name, buf, source)
        receiving = self._start("Recv", buf, source, tag)
        try:
            sending = self._start("Send", sent, dest, sendtag)
        except BaseException:
            cancel(receiving)
            raise
        try:
            self._receive(name, receiving, buf, source, tag, status, dest != PROC_NULL)
        except BaseException:
            keep(sending)
            raise
        self._send("Send", sending, dest, sendtag, at or _getframe(2))

    def _do_sendrecv_replace(
        self, name: str, buf: Any, dest: int, sendtag: int, source: int, tag: int, status: Any
    ) -> None:
        check_message(self, name, buf, dest)
        values = flat(buf)
        if values is None:  # `flat` cannot copy this buffer
            super().Sendrecv_replace(buf, dest, sendtag, source, tag, status)
            return
        datatype, copy = parse(buf).datatype, values.copy()
        sent = copy if datatype is None else [copy, datatype]
        self._do_sendrecv(name, sent, dest, sendtag, buf, source, tag, status, _getframe(2))

    def _send(self, name: str, request: MPI.Request, dest: int, tag: int, at: FrameType) -> None:
        """Wait until a message has been sent, or has been received if the send is synchronous.

        `at`: the frame of the caller.
        """
        traffic.balance += 1
        traffic.sends.append((name, self, dest, tag, at.f_code, at.f_lasti))
        try:
            if not request.Test():
                self._wait(name, request.Test, dest, tag)
        except BaseException:
            keep(request)
            raise

    def _receive(
        self,
        name: str,
        request: MPI.Request,
        buf: Any,
        source: int,
        tag: int,
        status: MPI.Status | None,
        sends_too: bool = False,
    ) -> None:
        """Wait until a message has been received; say which call, and the sizes, if it does not fit."""
        traffic.balance -= 1
        status = _status if status is None else status
        try:
            if not request.Test(status):
                self._wait(name, partial(request.Test, status), source, tag, sends_too)
        except MPI.Exception as error:
            cancel(request)
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            raise too_long(error, f"rank {self.rank}: {name}", buf, status) from None
        except BaseException:
            cancel(request)
            raise
        length = status.Get_count(MPI.BYTE) if type(buf) is ndarray else 0
        if length and length % (buf.itemsize or 1):
            raise MessageError(
                MPI.ERR_TYPE,  # MPICH would abort
                f"rank {self.rank}: {name} was sent {length} bytes by rank {status.source} "
                f"(tag {status.tag}), but an item of its buffer has {buf.itemsize} bytes ({buf.dtype}). "
                "Give the buffer the dtype of what is sent",
            )

    def _matched(
        self, name: str, source: int, tag: int, status: MPI.Status | None, sends_too: bool = False
    ) -> MPI.Message:
        """Wait for a message, and take it out of the queue."""
        message = None
        probe = "Improbe" if name == "Mprobe" else "improbe"

        def has_arrived() -> bool:
            nonlocal message
            message = self._probe(probe, source, tag, status)
            return message is not None

        self._wait(name, has_arrived, source, tag, sends_too)
        traffic.balance -= 1
        assert message is not None, f"{name} from {source} with tag {tag} is over without a message"
        return message

    def _do_mprobe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> MPI.Message:
        under_way.has_untracked_receives = True  # another object receives the message
        return self._matched(name, source, tag, status)

    def _do_probe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Literal[True]:
        self._wait(name, lambda: self._probe("Iprobe", source, tag, status), source, tag)
        return True

    def _wait(
        self, name: str, is_done: Callable[[], bool], peer: int, tag: int, sends_too: bool = False
    ) -> None:
        """Wait for a message of the call `name`."""

        def describe(waited: float) -> MessageWait | None:
            if self._channel is None:
                return None
            wait = self._message_wait(self._channel.watch, name, peer, tag)
            wait.sends_too = sends_too
            return wait

        wait_until(is_done, describe)

    def _message_wait(self, watch: Watch, name: str, peer: int, tag: int) -> MessageWait:
        wait = MessageWait(watch, self._members, self.deadline_s, name, self._world_rank(peer), tag)
        if name not in SENDS:
            wait.receives = self, peer, tag
        return wait

    # Calls that do not wait

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Isend", buf, dest)
        request: MPI.Request = polled(super().Isend(buf, dest, tag), "Isend", self, dest, tag, _getframe(1))
        return request

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Irecv", buf, source)
        request: MPI.Request = polled(
            super().Irecv(buf, source, tag), "Irecv", self, source, tag, _getframe(1)
        )
        return request

    def _do_start(self, name: str, buf: Any, peer: int, tag: int) -> Any:
        """Do a non-blocking or persistent send or receive."""
        if name[0].isupper() and type(buf) is not ndarray:
            check_message(self, name, buf, peer)
        return polled(self._start(name, buf, peer, tag), name, self, peer, tag, _getframe(2))

    def _do_start_more(self, name: str, kwargs: dict[str, Any]) -> Any:
        """Do an Isendrecv, Isendrecv_replace or partitioned message; of two peers, the source counts."""
        for buffer, end in ("buf", "dest"), ("buf", "source"), ("sendbuf", "dest"), ("recvbuf", "source"):
            if buffer in kwargs and end in kwargs:
                check_message(self, name, kwargs[buffer], kwargs[end], kwargs.get("partitions", 1))
        request = getattr(super(), name)(**kwargs)
        peer = kwargs["source"] if "source" in kwargs else kwargs["dest"]
        tag = kwargs["recvtag"] if "recvtag" in kwargs else kwargs["tag"]
        return polled(request, name, self, peer, tag, _getframe(2))

    def _do_start_collective(self, name: str, kwargs: dict[str, Any]) -> Any:
        """Do a non-blocking or persistent collective."""
        buffers = [kwargs[key] for key in ("buf", "sendbuf", "recvbuf") if key in kwargs]
        check_buffers(self, name, buffers, kwargs.get("root", 0))
        return polled(self._start_collective(name, kwargs), name, self, NO_PEER, -1, _getframe(2))

    def _do_look(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Any:
        """Do a probe that does not wait; its calls without success are counted."""
        under_way.has_untracked_receives = under_way.has_untracked_receives or name.lower() == "improbe"
        message = self._probe(name, source, tag, status)
        if message:
            polls.successes += 1
            return message
        polls.failed += 1
        if polls.is_due and self._channel is not None:
            polls.look(lambda watch: self._message_wait(watch, name, source, tag))
        return message

    def _schedule_messages(self) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
        comm_class = type(self)
        return (
            super().Isend if comm_class.Isend is WatchedMessages.Isend else self.Isend,
            super().Irecv if comm_class.Irecv is WatchedMessages.Irecv else self.Irecv,
        )


# A call -> the call of mpi4py that starts it.
STARTED_BY = {"Send": "Isend", "Rsend": "Irsend", "Ssend": "Issend", "Recv": "Irecv"}
STARTED_BY |= {"send": "isend", "ssend": "issend", "recv": "irecv", "Bsend": "Ibsend", "bsend": "ibsend"}

_STARTS = {*NONBLOCKING_SENDS, *NONBLOCKING_RECEIVES} - {"Isend", "Irecv", "Psend_init", "Precv_init"}
for _via, _names in {
    "_do_send": ("Rsend", "Ssend", "send", "ssend"),
    "_do_bsend": ("Bsend", "bsend"),
    "_do_recv": ("recv",),
    "_do_sendrecv_of_object": ("sendrecv",),
    "_do_sendrecv": ("Sendrecv",),
    "_do_sendrecv_replace": ("Sendrecv_replace",),
    "_do_probe": ("Probe", "probe"),
    "_do_mprobe": ("Mprobe", "mprobe"),
    "_do_look": PROBES,
    "_do_start": _STARTS,
}.items():
    add_methods(WatchedMessages, _names, _via)
_MORE = "Isendrecv", "Isendrecv_replace", "Psend_init", "Precv_init"
add_methods(WatchedMessages, _MORE, "_do_start_more", by_name=True)
add_methods(WatchedMessages, NONBLOCKING_COLLECTIVES, "_do_start_collective", by_name=True)


class Leftovers(NamedTuple):
    """What a rank's cell has left: plain data, for the notebook.

    `arrived`: the first message from each rank that waits to be received here. `sent`: this rank's last
    sends. `requests`: of each request that has not completed, the operation, the peer (a rank of the world,
    or -1), the line, and whether the program has dropped the request.
    """

    arrived: list[LeftMessage]
    sent: list[LeftMessage]
    requests: list[tuple[str, int, str, bool]]


def leftovers(watch: Watch) -> Leftovers:
    """Return what this rank's cell has left."""
    arrived: list[LeftMessage] = []
    for _ in range(LOOKS):
        arrived = list(_arrived(watch))
        if arrived:
            break
        sleep(LOOK_S)
    sent: list[LeftMessage] = []
    for _, comm, dest, tag, code, instruction in traffic.sends:
        channel = comm._channel
        if channel in watch.channels and 0 <= dest < len(channel.members):
            place = place_of_instruction(code, instruction)
            sent.append((channel.row, watch.rank, channel.members[dest], tag, place))
    return Leftovers(arrived, sent, traffic.left_open)


def requests_of_cell() -> list[tuple[str, int, str, bool]]:
    """Return the requests that this cell has left open or has dropped; earlier cells' have been named."""
    return list((Counter(open_requests()) - traffic.open_before).elements())


def open_requests() -> list[tuple[str, int, str, bool]]:
    """Return the requests of the program that have not completed: see Leftovers."""
    requests = []
    for is_dropped, calls in (False, under_way.held()), (True, under_way.dropped):
        for _, made in calls:
            if is_own_code(made.code):
                peer = made.comm._world_rank(made.peer)
                requests.append((made.operation, peer, made.line_with_cell, is_dropped))
    return requests


def _arrived(watch: Watch) -> Iterable[LeftMessage]:
    status = MPI.Status()
    for channel in watch.channels:
        for source, member in enumerate(channel.members):
            if channel.comm.Iprobe(source, ANY_TAG, status):
                yield channel.row, member, watch.rank, status.tag, ""
