"""Blocking messages that can be interrupted, and that end with a report if the other rank takes no part."""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

from mpi4py import MPI
from numpy import ndarray

from mpiwatch import waiting
from mpiwatch.errors import TooLongError
from mpiwatch.flight_recorder.opcodes import OPERATIONS
from mpiwatch.message import flat, parse
from mpiwatch.message_wait import MessageWait
from mpiwatch.rendezvous import ChannelComm, NoChannel
from mpiwatch.requests import under_way, unreceived
from mpiwatch.signature import check_message
from mpiwatch.wrapper import like_mpi4py


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
        unreceived.balance[0] -= 1
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
            unreceived.balance[0] -= 1
        else:
            frame = sys._getframe(depth)
            unreceived.note((name, self, peer, tag, frame.f_code, frame.f_lasti))
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
