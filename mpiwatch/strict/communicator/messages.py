"""Messages in strict mode: sends wait for their receives, and receives must fit their messages."""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from mpiwatch.message import check_message
from mpiwatch.requests import counting_probe
from mpiwatch.strict import requests_made
from mpiwatch.strict.communicator.base import StrictBase
from mpiwatch.strict.exchange import lock
from mpiwatch.strict.objects import here
from mpiwatch.strict.operations import BothOperation, Operation, PlainOperation
from mpiwatch.strict.requests import StrictPrequest, StrictRequest


class StrictMessages(StrictBase):
    """Sends, receives and probes."""

    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        call = self._receiving("Recv", buf, source, tag)
        if call is None:
            super().Recv(buf, source, tag, status)
        else:
            self._complete("Recv", StrictRequest(None, call), source, tag, status, receives=True)

    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        call = self._receiving("recv", None, source, tag)
        if call is None:
            return super().recv(buf, source, tag, status)
        self._complete_call("recv", call, source, tag)
        return call.finish(status)

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
        self._both("Sendrecv", sendbuf, dest, sendtag, recvbuf, source, recvtag, status)

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
        return self._both("sendrecv", sendobj, dest, sendtag, recvbuf, source, recvtag, status)

    def _both(
        self,
        name: str,
        sent: Any,
        dest: int,
        sendtag: int,
        recvbuf: Any,
        source: int,
        recvtag: int,
        status: MPI.Status | None,
    ) -> Any:
        receiving = self._receiving("Recv" if name == "Sendrecv" else "recv", recvbuf, source, recvtag)
        sending = self._sending("Isend" if name == "Sendrecv" else "isend", sent, dest, sendtag)
        result = None
        if receiving is not None:
            self._complete_call(name, receiving, source, recvtag, sends_too=sending is not None)
            result = receiving.finish(status)
        elif status is not None:
            status.source, status.tag, status.count = MPI.PROC_NULL, MPI.ANY_TAG, 0
        if sending is not None:
            self._complete_call("Send" if name == "Sendrecv" else "send", sending, dest, sendtag)
            sending.finish(None)
        return result

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        copy = np.array(buf, copy=True) if isinstance(buf, np.ndarray) else None
        if copy is None or self._exchange is None:
            super().Sendrecv_replace(buf, dest, sendtag, source, recvtag, status)
        else:
            self.Sendrecv(copy, dest, sendtag, buf, source, recvtag, status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> MPI.Request:
        receiving = self._receiving("Irecv", recvbuf, source, recvtag)
        sending = self._sending("Isend", sendbuf, dest, sendtag)
        calls = [call for call in (sending, receiving) if call is not None]
        if not calls:
            return super().Isendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag)
        call = calls[0] if len(calls) == 1 else BothOperation(*calls)
        call.what = f"Isendrecv to rank {dest} and from rank {source}"
        return self._request(call, "Isendrecv", source, recvtag)

    def _matched(
        self, name: str, source: int, tag: int, status: MPI.Status | None, sends_too: bool = False
    ) -> MPI.Message:
        found: list[MPI.Message] = []

        def has_arrived() -> bool:
            message = (self.Improbe if name == "Mprobe" else self.improbe)(source, tag, status)
            found.extend([message] if message is not None else [])
            return bool(found)

        self._wait(name, has_arrived, source, tag, sends_too)
        return found[0]

    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        self._wait("Probe", lambda: self.Iprobe(source, tag, status), source, tag)
        return True

    probe = Probe

    def Iprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> bool:
        exchange = self._exchange
        self._check(source, tag, receives=True)
        if exchange is None or source == MPI.PROC_NULL:
            return super().Iprobe(source, tag, status)
        exchange.progress()
        header = exchange.find(source, tag)
        if header is not None and status is not None:
            status.source, status.tag = header.source, header.tag
            status.Set_elements(MPI.BYTE, header.signature.nbytes)
        return header is not None

    Iprobe = counting_probe("Iprobe", Iprobe)
    iprobe = Iprobe

    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        return self._taken("Improbe", source, tag, status)

    def improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        return self._taken("improbe", source, tag, status)

    def _taken(self, name: str, source: int, tag: int, status: MPI.Status | None) -> MPI.Message | None:
        exchange = self._exchange
        if exchange is None or source == MPI.PROC_NULL:
            return getattr(super(), name)(source, tag, status)
        with lock:
            if not self.Iprobe(source, tag, status):
                return None
            header = exchange.find(source, tag)
            assert header is not None
            message: MPI.Message | None = getattr(exchange.shadow, name)(header.source, header.number)
            if message is not None:
                exchange.unexpected.remove(header)
                exchange.clock.merge(header.clock)
            return message


def _array(buf: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    return buf, dest, tag


def _object(obj: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    return obj, dest, tag


def _blocking_send(name: str) -> Callable[..., Any]:
    given = _array if name[0].isupper() else _object  # their parameters have mpi4py's names

    def send(self: StrictMessages, *arguments: Any, **named: Any) -> None:
        buf, dest, tag = given(*arguments, **named)
        call = self._sending(name, buf, dest, tag)
        if call is None:
            getattr(super(StrictMessages, self), name)(buf, dest, tag)
        else:
            shown = {"Rsend": "Send", "rsend": "send", "Bsend": "Send", "bsend": "send"}.get(name, name)
            self._complete(shown, StrictRequest(None, call), dest, tag)

    return send


def _nonblocking_send(name: str) -> Callable[..., Any]:
    given = _array if name[0].isupper() else _object

    def send(self: StrictMessages, *arguments: Any, **named: Any) -> MPI.Request:
        buf, dest, tag = given(*arguments, **named)
        call = self._sending(name, buf, dest, tag)
        if call is None:
            call = PlainOperation(name, getattr(MPI.COMM_SELF, name)(buf, MPI.PROC_NULL), here())
        return self._request(call, name, dest, tag)

    return send


def _nonblocking_receive(name: str) -> Callable[..., Any]:
    def receive(
        self: StrictMessages, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> MPI.Request:
        call = self._receiving(name, buf, source, tag)
        if call is None:
            call = PlainOperation(name, getattr(MPI.COMM_SELF, name)(buf, MPI.PROC_NULL), here())
        return self._request(call, name, source, tag)

    return receive


def _persistent(self: StrictMessages, name: str, buf: Any, peer: int, tag: int) -> MPI.Prequest:
    receives = name == "Recv_init"
    self._check(peer, tag, receives)
    check_message(self, name, buf, peer)

    def start() -> Operation:
        call = (self._receiving if receives else self._sending)(name, buf, peer, tag)
        return call or PlainOperation(name, MPI.COMM_SELF.Irecv(buf, MPI.PROC_NULL), here())

    request = StrictPrequest(None, start, name, here())
    frame = sys._getframe(2)
    request.made = name, self, peer, tag, frame.f_code, frame.f_lasti
    requests_made.add_request(request)
    return request


def _persistent_send(name: str) -> Callable[..., Any]:
    def init(self: StrictMessages, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        return _persistent(self, name, buf, dest, tag)

    return init


def _persistent_receive(
    self: StrictMessages, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
) -> MPI.Prequest:
    return _persistent(self, "Recv_init", buf, source, tag)


for _name in "Send", "Ssend", "Rsend", "Bsend", "send", "ssend", "bsend":
    setattr(StrictMessages, _name, _blocking_send(_name))
for _name in "Isend", "Issend", "Irsend", "Ibsend", "isend", "issend", "ibsend":
    setattr(StrictMessages, _name, _nonblocking_send(_name))
for _name in "Irecv", "irecv":
    setattr(StrictMessages, _name, _nonblocking_receive(_name))
for _name in "Send_init", "Ssend_init", "Rsend_init", "Bsend_init":
    setattr(StrictMessages, _name, _persistent_send(_name))
setattr(StrictMessages, "Recv_init", _persistent_receive)  # noqa: B010
