"""Sends and receives that can be interrupted, and end with a report if the other rank takes no part.

Blocking calls are done by their non-blocking twins, which are polled. Requests of the caller's own
non-blocking calls poll, know their line, and are tracked as under way.
"""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from time import sleep
from typing import Any, Literal

from mpi4py import MPI
from numpy import ndarray

from mpiwatch import under_way, waiting
from mpiwatch.collectives import Channel, ChannelComm, NoChannel
from mpiwatch.errors import TooLongError
from mpiwatch.message import arguments_of, check_buffers, check_message, flat, parse
from mpiwatch.opcodes import (
    NONBLOCKING_COLLECTIVES,
    NONBLOCKING_RECEIVES,
    NONBLOCKING_SENDS,
    OPERATIONS,
    PROBES,
)
from mpiwatch.requests import NO_PEER, PolledRequest, counting_probe, polled
from mpiwatch.source import line_of
from mpiwatch.under_way import KEPT, RawRequest, balance, note, receives, sends
from mpiwatch.waiting import MessageWait, Watch
from mpiwatch.wrapper import like_mpi4py

LOOKS, LOOK_S = 10, 0.001  # for messages that are still on their way, and the time between two

# By ranks of the world: the communicator's row, source, destination, tag, and the line of the send or "".
Message = tuple[int, int, int, int, str]


class WatchedMessages(ChannelComm):
    """Send, receive and the like, done by their non-blocking twins, which are polled until they are done."""

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Send", buf, dest)
        self._complete("Send", super().Isend(buf, dest, tag), dest, tag)

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        check_message(self, "Rsend", buf, dest)
        self._complete("Send", super().Irsend(buf, dest, tag), dest, tag)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Ssend", buf, dest)
        self._complete("Ssend", super().Issend(buf, dest, tag), dest, tag)

    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Recv", buf, source)
        status = _status if status is None else status
        try:
            self._complete("Recv", super().Irecv(buf, source, tag), source, tag, status, receives=True)
        except MPI.Exception as error:
            raise _clearer(error, "Recv", self, buf, status) from None

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        check_message(self, "Sendrecv", sendbuf, dest)
        check_message(self, "Sendrecv", recvbuf, source)
        receiving = super().Irecv(recvbuf, source, recvtag)
        try:
            sending = super().Isend(sendbuf, dest, sendtag)
        except BaseException:
            under_way.cancel(receiving)
            raise
        status = _status if status is None else status
        try:
            self._complete_both("Sendrecv", sending, dest, sendtag, receiving, source, recvtag, status)
        except MPI.Exception as error:
            raise _clearer(error, "Sendrecv", self, recvbuf, status) from None

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        check_message(self, "Sendrecv_replace", buf, dest)
        check_message(self, "Sendrecv_replace", buf, source)
        values = flat(buf)
        if values is None:  # nothing here knows how to copy it
            super().Sendrecv_replace(buf, dest, sendtag, source, recvtag, status)
            return
        datatype = parse(buf).datatype
        copy = values.copy()
        sending = super().Isend(copy if datatype is None else [copy, datatype], dest, sendtag)
        receiving = super().Irecv(buf, source, recvtag)
        self._complete_both("Sendrecv_replace", sending, dest, sendtag, receiving, source, recvtag, status)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._complete("send", super().isend(obj, dest, tag), dest, tag)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._complete("ssend", super().issend(obj, dest, tag), dest, tag)

    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        if buf is not None:
            super().recv(buf, MPI.PROC_NULL)  # receives nothing; mpi4py warns that it ignores `buf`
        return self._matched("recv", source, tag, status).recv(status)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        if recvbuf is not None:
            super().recv(recvbuf, MPI.PROC_NULL)
        sending = super().isend(sendobj, dest, sendtag)
        try:
            received = self._matched("sendrecv", source, recvtag, status, sends_too=True).recv(status)
        except BaseException:
            under_way.keep(sending)
            raise
        self._complete("send", sending, dest, sendtag)
        return received

    def _matched(
        self, name: str, source: int, tag: int, status: MPI.Status | None, sends_too: bool = False
    ) -> MPI.Message:
        found: list[MPI.Message] = []
        probe = super().Improbe if name == "Mprobe" else super().improbe

        def has_arrived() -> bool:
            message = probe(source, tag, status)
            if message is not None:
                found.append(message)
            return bool(found)

        self._wait(name, has_arrived, source, tag, sends_too)
        under_way.balance[0] -= 1
        return found[0]

    def _complete_both(
        self,
        name: str,
        sending: MPI.Request,
        dest: int,
        sendtag: int,
        receiving: MPI.Request,
        source: int,
        recvtag: int,
        status: MPI.Status | None,
    ) -> None:
        try:
            self._complete(name, receiving, source, recvtag, status, receives=True, sends_too=True)
        except BaseException:
            under_way.keep(sending)
            raise
        self._complete("Send", sending, dest, sendtag, depth=3)

    def _complete(
        self,
        name: str,
        request: MPI.Request,
        peer: int,
        tag: int,
        status: MPI.Status | None = None,
        receives: bool = False,
        sends_too: bool = False,
        depth: int = 2,
    ) -> None:
        if receives:
            under_way.balance[0] -= 1
        else:
            frame = sys._getframe(depth)
            under_way.note((name, self, peer, tag, frame.f_code, frame.f_lasti))
        try:
            if not request.Test(status):
                self._wait(name, lambda: request.Test(status), peer, tag, sends_too)
        except BaseException:
            if receives:
                under_way.cancel(request)
            else:
                under_way.keep(request)
            raise

    def _wait(
        self, name: str, is_done: Callable[[], bool], peer: int, tag: int, sends_too: bool = False
    ) -> None:
        if is_done():
            return
        channel = self._channel
        if isinstance(channel, NoChannel):
            while not is_done():
                waiting.yield_core()
            return
        world_rank = channel.members[peer] if 0 <= peer < len(channel.members) else -1
        wait = MessageWait(
            channel.watch,
            channel.members,
            self.deadline_s,
            OPERATIONS[name],
            world_rank,
            tag,
            sys._getframe(2),
            sends_too,
        )
        channel.watch.wait(is_done, wait)


_status = MPI.Status()  # for a receive whose caller asks for none


def _clearer(
    error: MPI.Exception, call: str, comm: WatchedMessages, buffer: Any, status: MPI.Status
) -> MPI.Exception:
    """Return an error that names the call and the sizes if the message was longer than the buffer."""
    if error.Get_error_class() != MPI.ERR_TRUNCATE:
        return error
    return TooLongError(error, call, comm.rank, buffer, status)


def _probing(name: str) -> Callable[..., Any]:
    def probe(
        self: WatchedMessages,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message | Literal[True]:
        if name.lower() == "mprobe":
            return self._matched(name, source, tag, status)
        has_arrived = super(WatchedMessages, self).Iprobe
        self._wait(name, lambda: has_arrived(source, tag, status), source, tag)
        return True

    return like_mpi4py(probe, name)


for _name in "Probe", "probe", "Mprobe", "mprobe":
    setattr(WatchedMessages, _name, _probing(_name))


_getframe = sys._getframe


class NotedRequests(ChannelComm):
    """Tracks the requests of the caller; blocking messages and schedules complete their own requests."""

    _again: MPI.Intracomm | None = None  # for non-blocking collectives after a hang, see `_nonblocking`
    _again_epoch = 0
    _next_isend, _next_irecv = MPI.Comm.Isend, MPI.Comm.Irecv  # like `super()`, in half the time

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        inner = cls.__mro__[cls.__mro__.index(NotedRequests) + 1 :]
        cls._next_isend, cls._next_irecv = (
            next(vars(base)[name] for base in inner if name in vars(base)) for name in ("Isend", "Irecv")
        )

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Isend", buf, dest)
        request = self._next_isend(buf, dest, tag)
        if type(request) is RawRequest:
            request = PolledRequest(request)
            frame = _getframe(1)
            request.made = made = "Isend", self, dest, tag, frame.f_code, frame.f_lasti
            note(made)
        kept = sends.requests
        kept.append(request)
        if len(kept) > KEPT:
            sends.tidy()
        return request

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Irecv", buf, source)
        request = self._next_irecv(buf, source, tag)
        if type(request) is RawRequest:
            request = PolledRequest(request)
            frame = _getframe(1)
            request.made = "Irecv", self, source, tag, frame.f_code, frame.f_lasti
            balance[0] -= 1
        kept = receives.requests
        kept.append(request)
        if len(kept) > KEPT:
            receives.tidy()
        return request

    def _renewed(self) -> None:
        super()._renewed()
        self._again = None

    def _schedule_messages(self) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
        own = type(self)
        return (
            super().Isend if own.Isend is NotedRequests.Isend else self.Isend,
            super().Irecv if own.Irecv is NotedRequests.Irecv else self.Irecv,
        )

    def _nonblocking(self, name: str) -> MPI.Intracomm | None:
        """Return the duplicate to use for non-blocking collectives; None before the first hang.

        A hang leaves non-blocking collectives under way. No call can cancel them, and the MPI library would
        match them with later ones. So the first one after a hang waits until all ranks make it, and
        duplicates the communicator again.
        """
        channel = self._channel
        if isinstance(channel, Channel) and max(channel.epoch_made, self._again_epoch) != channel.watch.epoch:
            self._join(name, depth=4)
            group = MPI.Intracomm.Get_group(self)
            # Create_group uses messages; Open MPI's Dup uses non-blocking collectives itself.
            self._again = MPI.Intracomm.Create_group(self, group, channel.watch.epoch % 1000)
            self._again_epoch = channel.watch.epoch
            group.Free()
        return self._again


def _noting(name: str) -> Callable[..., Any]:
    def start(self: NotedRequests, *arguments: Any, **named: Any) -> Any:
        peer, tag = _peer_and_tag(self, name, arguments, named)
        request = getattr(super(NotedRequests, self), name)(*arguments, **named)
        return polled(request, name, self, peer, tag, sys._getframe(1))

    return like_mpi4py(start, name)


def _peer_and_tag(
    comm: NotedRequests, name: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[int, int]:
    """Check the buffers; return the peer and the tag, for a send and receive those of the receive."""
    names: tuple[str, ...]
    if name in NONBLOCKING_SENDS or name == "Bsend":
        names, defaults = ("buf", "dest", "tag"), (-1, 0)
    elif name in NONBLOCKING_RECEIVES:
        names, defaults = ("buf", "source", "tag"), (-1, -1)
    elif name == "Isendrecv":
        names, defaults = ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag"), (-1, -1)
    else:
        names, defaults = ("buf", "dest", "sendtag", "source", "recvtag"), (-1, -1)
    if name in ("Psend_init", "Precv_init"):
        names = ("buf", "partitions", *names[1:])
    given = dict(zip(names, arguments, strict=False)) | named
    peers = [given.get(key, -1) for key in names if key in ("dest", "source")]
    if name[0].isupper():
        buffers = [given.get(key) for key in names if key.endswith("buf")]
        for buffer, peer in zip(buffers * len(peers), peers, strict=False):
            check_message(comm, name, buffer, peer, given.get("partitions", 1))
    return given.get(names[-2], defaults[0]), given.get(names[-1], defaults[1])


def _collective(name: str) -> Callable[..., Any]:
    def start(self: NotedRequests, *arguments: Any, **named: Any) -> Any:
        given = arguments_of(name, arguments, named)
        buffers = [given[key] for key in ("buf", "sendbuf", "recvbuf") if key in given]
        check_buffers(self, name, buffers, given.get("root", 0))
        again = self._nonblocking(name)
        if again is None:
            request = getattr(super(NotedRequests, self), name)(*arguments, **named)
        else:
            request = getattr(again, name)(*arguments, **named)
        return polled(request, name, self, NO_PEER, -1, sys._getframe(1))

    return like_mpi4py(start, name)


def _inner(name: str) -> Callable[..., Any]:
    return lambda self, *call: getattr(super(NotedRequests, self), name)(*call)


def _losing(name: str, kind: under_way.UnderWay) -> Callable[..., Any]:
    def start(self: NotedRequests, *arguments: Any, **named: Any) -> Any:
        if name == "Bsend":
            _peer_and_tag(self, name, arguments, named)
        kind.lost_track = True  # the message is in a buffer of MPI, or another object receives it
        return getattr(super(NotedRequests, self), name)(*arguments, **named)

    return like_mpi4py(start, name)


for _name in (*NONBLOCKING_SENDS, *NONBLOCKING_RECEIVES, "Isendrecv", "Isendrecv_replace"):
    if hasattr(MPI.Comm, _name) and _name not in vars(NotedRequests):  # not every mpi4py has all
        setattr(NotedRequests, _name, _noting(_name))
for _name in NONBLOCKING_COLLECTIVES:
    if hasattr(MPI.Intracomm, _name):
        setattr(NotedRequests, _name, _collective(_name))
for _kind, _names in (sends, "Bsend bsend"), (receives, "Mprobe mprobe Improbe improbe"):
    for _name in _names.split():
        setattr(NotedRequests, _name, _losing(_name, _kind))
for _name in PROBES:
    _probe = vars(NotedRequests).get(_name) or _inner(_name)
    setattr(NotedRequests, _name, counting_probe(_name, _probe))


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
        for _, comm, dest, tag, code, instruction in under_way.noted
        if (channel := comm._channel) in watch.channels and 0 <= dest < len(channel.members)
    ]


def _arrived(watch: Watch) -> Iterable[Message]:
    status = MPI.Status()
    for channel in watch.channels:
        for source, member in enumerate(channel.members):
            if channel.comm.Iprobe(source, MPI.ANY_TAG, status):
                yield channel.row, member, watch.rank, status.tag, ""
