"""Sends, receives and probes that can be interrupted, and end with a report if the other rank takes no part.

Blocking calls are done by their non-blocking twins, which are polled. Requests of the caller's own
non-blocking calls poll, know their line, and are tracked as under way.

`_start`, `_receive_object` and `_probe` are the layer that moves messages; strict mode replaces them.
"""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from time import sleep
from typing import Any, Literal

from mpi4py import MPI
from numpy import ndarray

from mpiwatch import requests
from mpiwatch.buffers import arguments_of, check_message, flat, parse
from mpiwatch.collectives import ChannelComm
from mpiwatch.errors import TooLongError
from mpiwatch.opcodes import NONBLOCKING_RECEIVES, NONBLOCKING_SENDS, PROBES
from mpiwatch.requests import BlockingWait, balance, note_send, noted, polled, polls, receives, sends
from mpiwatch.source import line_of
from mpiwatch.waiting import Watch, wait_until
from mpiwatch.wrapper import like_mpi4py, renamed

LOOKS, LOOK_S = 10, 0.001  # for messages that are still on their way, and the time between two

# By ranks of the world: the communicator's row, source, destination, tag, and the line of the send or "".
Message = tuple[int, int, int, int, str]

ANY_SOURCE, ANY_TAG, PROC_NULL = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL

_getframe = sys._getframe
_status = MPI.Status()  # for a receive whose caller asks for none


class WatchedMessages(ChannelComm):
    """Send, receive and the like. The calls that take a table are below the class."""

    # The layer below

    def _start(self, name: str, buf: Any, peer: int, tag: int) -> MPI.Request:
        """Start a send or a receive of this name by its non-blocking twin."""
        if name == "Send":  # this and Recv are called most often, and need no look-up
            return super().Isend(buf, peer, tag)
        if name == "Recv":
            return super().Irecv(buf, peer, tag)
        request: MPI.Request = getattr(super(), STARTED_BY.get(name, name))(buf, peer, tag)
        return request

    def _receive_object(self, name: str, source: int, tag: int, status: Any, sends_too: bool = False) -> Any:
        """Wait for a message of a pickled object, and return the object."""
        return self._matched(name, source, tag, status, sends_too).recv(status)

    def _probe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Any:
        """Do an Iprobe or Improbe."""
        return getattr(super(), name)(source, tag, status)

    # Blocking calls

    def Recv(
        self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Recv", buf, source)
        self._receive("Recv", self._start("Recv", buf, source, tag), buf, source, tag, status)

    def recv(
        self,
        buf: Any = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        if buf is not None:
            super().recv(buf, PROC_NULL)  # receives nothing; mpi4py warns that it ignores `buf`
        return self._receive_object("recv", source, tag, status)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        check_message(self, "Sendrecv", sendbuf, dest)
        check_message(self, "Sendrecv", recvbuf, source)
        self._exchange_arrays("Sendrecv", sendbuf, dest, sendtag, recvbuf, source, recvtag, status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        check_message(self, "Sendrecv_replace", buf, dest)
        check_message(self, "Sendrecv_replace", buf, source)
        values = flat(buf)
        if values is None:  # nothing here knows how to copy it
            super().Sendrecv_replace(buf, dest, sendtag, source, recvtag, status)
            return
        datatype, copy = parse(buf).datatype, values.copy()
        sent = copy if datatype is None else [copy, datatype]
        self._exchange_arrays("Sendrecv_replace", sent, dest, sendtag, buf, source, recvtag, status)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        if recvbuf is not None:
            super().recv(recvbuf, PROC_NULL)
        sent = self._start("send", sendobj, dest, sendtag)
        try:
            received = self._receive_object("sendrecv", source, recvtag, status, dest != PROC_NULL)
        except BaseException:
            requests.keep(sent)
            raise
        self._send("send", sent, dest, sendtag)
        return received

    def _exchange_arrays(
        self,
        name: str,
        sendbuf: Any,
        dest: int,
        sendtag: int,
        recvbuf: Any,
        source: int,
        recvtag: int,
        status: MPI.Status | None,
    ) -> None:
        receiving = self._start("Recv", recvbuf, source, recvtag)
        try:
            sent = self._start("Send", sendbuf, dest, sendtag)
        except BaseException:
            requests.cancel(receiving)
            raise
        try:
            self._receive(name, receiving, recvbuf, source, recvtag, status, dest != PROC_NULL)
        except BaseException:
            requests.keep(sent)
            raise
        self._send("Send", sent, dest, sendtag, depth=3)

    def _send(self, name: str, request: MPI.Request, dest: int, tag: int, depth: int = 2) -> None:
        """Wait until a message has been sent, or has been received if the send is synchronous."""
        frame = _getframe(depth)
        note_send((name, self, dest, tag, frame.f_code, frame.f_lasti))
        try:
            if not request.Test():
                self._wait(name, request.Test, dest, tag)
        except BaseException:
            requests.keep(request)
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
        """Wait until a message has been received; say which call, and the sizes, if it was too long."""
        balance[0] -= 1
        status = _status if status is None else status
        try:
            if not request.Test(status):
                self._wait(name, lambda: request.Test(status), source, tag, sends_too)
        except MPI.Exception as error:
            requests.cancel(request)
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            raise TooLongError(error, name, self.rank, buf, status) from None
        except BaseException:
            requests.cancel(request)
            raise

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

        if not has_arrived():
            self._wait(name, has_arrived, source, tag, sends_too)
        balance[0] -= 1
        assert message is not None
        return message

    def _wait(
        self, name: str, is_done: Callable[[], bool], peer: int, tag: int, sends_too: bool = False
    ) -> None:
        """Wait for a message of the call `name`."""

        def describe(waited: float) -> BlockingWait | None:
            if self._channel is None:
                return None
            wait = self._message_wait(self._channel.watch, name, peer, tag)
            wait.sends_too = sends_too
            return wait

        wait_until(is_done, describe)

    def _message_wait(self, watch: Watch, name: str, peer: int, tag: int) -> BlockingWait:
        return BlockingWait(watch, self._members, self.deadline_s, name, self._world_rank(peer), tag)

    # Short cuts through `sending` and `starting` for the calls that programs make most often

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Send", buf, dest)
        self._send("Send", self._start("Send", buf, dest, tag), dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Isend", buf, dest)
        made: MPI.Request = polled(super().Isend(buf, dest, tag), "Isend", self, dest, tag, _getframe(1))
        return made

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Irecv", buf, source)
        made: MPI.Request = polled(super().Irecv(buf, source, tag), "Irecv", self, source, tag, _getframe(1))
        return made

    def _schedule_messages(self) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
        own = type(self)
        return (
            super().Isend if own.Isend is WatchedMessages.Isend else self.Isend,
            super().Irecv if own.Irecv is WatchedMessages.Irecv else self.Irecv,
        )


# A call -> the call of mpi4py that starts it.
STARTED_BY = {"Send": "Isend", "Rsend": "Irsend", "Ssend": "Issend", "Recv": "Irecv"}
STARTED_BY |= {"send": "isend", "ssend": "issend", "recv": "irecv", "Bsend": "Ibsend", "bsend": "ibsend"}


def _array(buf: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    return buf, dest, tag


def _object(obj: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    return obj, dest, tag


def _received(buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> tuple[Any, int, int]:
    return buf, source, tag


def _reader(name: str) -> Callable[..., tuple[Any, int, int]]:
    """Return a function with the parameters of a call; it returns the message, the peer and the tag."""
    return renamed(_received if "recv" in name.lower() else _array if name[0].isupper() else _object, name)


def sending(name: str) -> Callable[..., Any]:
    """Return a blocking send."""
    read, is_of_array = _reader(name), name[0].isupper()
    shown = name if name.lower() in ("send", "ssend") else "Send" if is_of_array else "send"

    def send(self: WatchedMessages, *arguments: Any, **named: Any) -> None:
        buf, dest, tag = read(*arguments, **named)
        if is_of_array and type(buf) is not ndarray:
            check_message(self, name, buf, dest)
        self._send(shown, self._start(name, buf, dest, tag), dest, tag)

    return like_mpi4py(send, name)


def starting(name: str) -> Callable[..., Any]:
    """Return a non-blocking or persistent send or receive."""
    read, is_of_array = _reader(name), name[0].isupper()

    def start(self: WatchedMessages, *arguments: Any, **named: Any) -> Any:
        buf, peer, tag = read(*arguments, **named)
        if is_of_array and type(buf) is not ndarray:
            check_message(self, name, buf, peer)
        return polled(self._start(name, buf, peer, tag), name, self, peer, tag, _getframe(1))

    return like_mpi4py(start, name)


def _starting_more(name: str) -> Callable[..., Any]:
    """Return an Isendrecv, Isendrecv_replace or partitioned message; of two peers, the source counts."""

    def start(self: WatchedMessages, *arguments: Any, **named: Any) -> Any:
        given = arguments_of(name, arguments, named)
        parts = given.get("partitions", 1)
        for buffer, end in ("buf", "dest"), ("buf", "source"), ("sendbuf", "dest"), ("recvbuf", "source"):
            if buffer in given and end in given:
                check_message(self, name, given[buffer], given[end], parts)
        request = getattr(super(WatchedMessages, self), name)(*arguments, **named)
        peer = given["source"] if "source" in given else given["dest"]
        tag = given["recvtag"] if "recvtag" in given else given["tag"]
        return polled(request, name, self, peer, tag, _getframe(1))

    return like_mpi4py(start, name)


def _losing(name: str) -> Callable[..., Any]:
    """Return a buffered send: its message is in a buffer of MPI."""

    def send(self: WatchedMessages, *arguments: Any, **named: Any) -> Any:
        given = arguments_of(name, arguments, named)
        if name == "Bsend":
            check_message(self, name, given["buf"], given["dest"])
        sends.lost_track = True
        return getattr(super(WatchedMessages, self), name)(*arguments, **named)

    return like_mpi4py(send, name)


def _probing(name: str) -> Callable[..., Any]:
    """Return a blocking probe."""

    def probe(
        self: WatchedMessages,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message | Literal[True]:
        if name.lower() == "mprobe":
            receives.lost_track = True  # another object receives the message
            return self._matched(name, source, tag, status)
        self._wait(name, lambda: self._probe("Iprobe", source, tag, status), source, tag)
        return True

    return like_mpi4py(probe, name)


def _looking(name: str) -> Callable[..., Any]:
    """Return a probe that does not wait; its calls without success are counted."""
    takes = name.lower() == "improbe"

    def probe(
        self: WatchedMessages,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        receives.lost_track = receives.lost_track or takes
        found = self._probe(name, source, tag, status)
        if found:
            polls.successes += 1
            return found
        polls.failed += 1
        if polls.is_due and self._channel is not None:
            polls.look(lambda watch: self._message_wait(watch, name, source, tag))
        return found

    return like_mpi4py(probe, name)


_MAKERS = {
    sending: ("Send", "Rsend", "Ssend", "send", "ssend"),
    _losing: ("Bsend", "bsend"),
    starting: [name for name in (*NONBLOCKING_SENDS, *NONBLOCKING_RECEIVES) if name[0] != "P"],
    _starting_more: ("Isendrecv", "Isendrecv_replace", "Psend_init", "Precv_init"),
    _probing: ("Probe", "probe", "Mprobe", "mprobe"),
    _looking: PROBES,
}
for _make, _names in _MAKERS.items():
    for _name in _names:
        if hasattr(MPI.Comm, _name) and _name not in vars(WatchedMessages):  # not every mpi4py has all
            setattr(WatchedMessages, _name, _make(_name))


def unreceived(watch: Watch) -> tuple[list[Message], list[Message]]:
    """Return the first message from each rank that waits to be received here, and this rank's last sends."""
    arrived: list[Message] = []
    for _ in range(LOOKS):
        arrived = list(_arrived(watch))
        if arrived:
            break
        sleep(LOOK_S)
    return arrived, [
        (channel.row, watch.rank, channel.members[dest], tag, line_of(code, instruction))
        for _, comm, dest, tag, code, instruction in noted
        if (channel := comm._channel) and channel in watch.channels and 0 <= dest < len(channel.members)
    ]


def _arrived(watch: Watch) -> Iterable[Message]:
    status = MPI.Status()
    for channel in watch.channels:
        for source, member in enumerate(channel.members):
            if channel.comm.Iprobe(source, ANY_TAG, status):
                yield channel.row, member, watch.rank, status.tag, ""
