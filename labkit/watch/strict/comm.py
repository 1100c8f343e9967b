"""The communicator of strict mode: sends wait for their receives, and each message has a header."""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.watch.communicators import WatchedComm
from labkit.watch.flight_recorder.opcodes import NONBLOCKING_COLLECTIVES, OPERATION_NAMES
from labkit.watch.rendezvous import Channel
from labkit.watch.requests.polled import note
from labkit.watch.requests.waits import NO_PEER
from labkit.watch.strict import objects, requests_made
from labkit.watch.strict.exchange import Clock, Exchange, Traffic
from labkit.watch.strict.objects import here
from labkit.watch.strict.operations import (
    BothOperation,
    CollectiveOperation,
    Operation,
    PlainOperation,
    ReceiveOperation,
    SendOperation,
)
from labkit.watch.strict.requests import StrictPrequest, StrictRequest
from labkit.watch.strict.signatures import of_message

clock, traffic = Clock(0, 1), Traffic()  # of this process; `begin` makes the clock

FROM_ROOT = ("Bcast", "Scatter", "Scatterv", "bcast", "scatter")
TO_ROOT = ("Reduce", "Gather", "Gatherv", "reduce", "gather")
MODES = {
    "Send": "Issend",
    "Ssend": "Issend",
    "Rsend": "Issend",
    "Bsend": "Ibsend",
    "Isend": "Issend",
    "Issend": "Issend",
    "Irsend": "Issend",  # the message itself is received later than the receive is posted
    "Ibsend": "Ibsend",
    "Send_init": "Issend",
    "Ssend_init": "Issend",
    "Rsend_init": "Issend",
    "Bsend_init": "Ibsend",
}


class StrictComm(WatchedComm):
    """A watched communicator whose `Send` and `send` are synchronous and whose messages are compared."""

    _exchange: Exchange | None = None  # None for what Idup makes: plain messages

    def begin(self) -> None:
        """Make what compares the messages of this communicator. Collective."""
        channel = self._channel
        if not isinstance(channel, Channel):
            return
        self._exchange = exchange = Exchange(self, channel.members, clock, traffic)
        inner = channel.rendezvous

        def rendezvous(
            operation: int | str,
            deadline_s: float,
            root: int,
            count: int,
            dtype: int,
            reduction: int,
            depth: int = 2,
        ) -> None:
            inner(operation, deadline_s, root, count, dtype, reduction, depth + 1)
            name = operation if isinstance(operation, str) else OPERATION_NAMES[operation]
            if name not in ("Free", "Disconnect"):
                _merge_clocks(exchange, name, root)

        channel.rendezvous = rendezvous  # type: ignore[method-assign]

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        if is_ready:
            new.begin()
        objects.track(new, "communicator")

    def Free(self) -> None:
        exchange = self._exchange
        super().Free()
        self._ended(exchange)

    def Disconnect(self) -> None:
        exchange = self._exchange
        super().Disconnect()
        self._ended(exchange)

    def _ended(self, exchange: Exchange | None) -> None:
        objects.forget(self)
        if exchange is not None:
            self._exchange = None
            requests_made.report_leftovers(exchange)
            exchange.close()

    def Get_group(self) -> MPI.Group:
        return MPI.Group.adopt(super().Get_group())  # type: ignore[attr-defined]

    def _check(self, peer: int, tag: int, receives: bool) -> None:
        if self == MPI.COMM_NULL:
            raise MPI.Exception(MPI.ERR_COMM)
        if not (0 <= peer < self.size or peer == MPI.PROC_NULL or (receives and peer == MPI.ANY_SOURCE)):
            raise MPI.Exception(MPI.ERR_RANK)
        if not (0 <= tag <= _largest_tag() or (receives and tag == MPI.ANY_TAG)):
            raise MPI.Exception(MPI.ERR_TAG)

    def _sending(self, name: str, message: Any, dest: int, tag: int) -> Operation | None:
        """Start a send; None if the message goes nowhere or has no header."""
        self._check(dest, tag, receives=False)
        if self._exchange is None or dest == MPI.PROC_NULL:
            return None
        mode = MODES[name[0].upper() + name[1:]]
        call = SendOperation(self._exchange, name, mode, message, dest, tag, here())
        call.what = f"{name} to rank {dest}, tag {tag}"
        return call

    def _receiving(self, name: str, buf: Any, source: int, tag: int) -> Operation | None:
        self._check(source, tag, receives=True)
        if self._exchange is None or source == MPI.PROC_NULL:
            return None
        call = ReceiveOperation(self._exchange, name, buf, source, tag, here())
        peer = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
        call.what = f"{name} from {peer}" + (f", tag {tag}" if tag != MPI.ANY_TAG else "")
        return call

    def _request(self, call: Operation, name: str, peer: int, tag: int) -> MPI.Request:
        frame = sys._getframe(2)
        request = StrictRequest(None, call)
        request.made = name, self, peer, tag, frame.f_code, frame.f_lasti
        note(request, name)
        requests_made.add_request(request)
        return request

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

    def _complete_call(
        self, name: str, call: Operation, peer: int, tag: int, sends_too: bool = False
    ) -> None:
        try:
            self._wait(name, call.advance, peer, tag, sends_too)
        except BaseException:
            call.cancel()
            raise

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
            message = self.Improbe(source, tag, status)
            found.extend([message] if message is not None else [])
            return bool(found)

        self._wait(name, has_arrived, source, tag, sends_too)
        return found[0]

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

    iprobe = Iprobe

    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        exchange = self._exchange
        if exchange is None or source == MPI.PROC_NULL:
            return super().Improbe(source, tag, status)
        if not self.Iprobe(source, tag, status):
            return None
        header = exchange.find(source, tag)
        assert header is not None
        message = exchange.shadow.Improbe(header.source, header.number)
        if message is not None:
            exchange.unexpected.remove(header)
            exchange.clock.merge(header.clock)
        return message

    improbe = Improbe


def _largest_tag() -> int:
    return int(MPI.COMM_SELF.Get_attr(MPI.TAG_UB) or 32767)


def _merge_clocks(exchange: Exchange, name: str, root: int) -> None:
    """Note which ranks' steps happened before this collective ends; all ranks have joined it."""
    mine = np.array(exchange.clock.times, np.int64)
    everyone = np.empty((len(exchange.members), len(mine)), np.int64)
    MPI.Intracomm.Allgather(exchange.shadow, mine, everyone)
    if name in FROM_ROOT:
        everyone = everyone[[root]]
    elif name in TO_ROOT and exchange.rank != root:
        return
    exchange.clock.merge([int(time) for time in everyone.max(axis=0)])


def _blocking_send(name: str) -> Callable[..., Any]:
    def send(self: StrictComm, buf: Any, dest: int, tag: int = 0) -> None:
        call = self._sending(name, buf, dest, tag)
        if call is None:
            getattr(super(StrictComm, self), name)(buf, dest, tag)
        else:
            shown = {"Rsend": "Send", "rsend": "send", "Bsend": "Send", "bsend": "send"}.get(name, name)
            self._complete(shown, StrictRequest(None, call), dest, tag)

    return send


def _nonblocking_send(name: str) -> Callable[..., Any]:
    def send(self: StrictComm, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        call = self._sending(name, buf, dest, tag)
        if call is None:
            call = PlainOperation(name, getattr(MPI.COMM_SELF, name)(buf, MPI.PROC_NULL), here())
        return self._request(call, name, dest, tag)

    return send


def _nonblocking_receive(name: str) -> Callable[..., Any]:
    def receive(
        self: StrictComm, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> MPI.Request:
        call = self._receiving(name, buf, source, tag)
        if call is None:
            call = PlainOperation(name, getattr(MPI.COMM_SELF, name)(buf, MPI.PROC_NULL), here())
        return self._request(call, name, source, tag)

    return receive


def _persistent(self: StrictComm, name: str, buf: Any, peer: int, tag: int) -> MPI.Prequest:
    receives = name == "Recv_init"
    self._check(peer, tag, receives)

    def start() -> Operation:
        call = (self._receiving if receives else self._sending)(name, buf, peer, tag)
        return call or PlainOperation(name, MPI.COMM_SELF.Irecv(buf, MPI.PROC_NULL), here())

    request = StrictPrequest(None, start, name, here())
    frame = sys._getframe(2)
    request.made = name, self, peer, tag, frame.f_code, frame.f_lasti
    requests_made.add_request(request)
    return request


def _persistent_send(name: str) -> Callable[..., Any]:
    def init(self: StrictComm, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        return _persistent(self, name, buf, dest, tag)

    return init


def _persistent_receive(
    self: StrictComm, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
) -> MPI.Prequest:
    return _persistent(self, "Recv_init", buf, source, tag)


def _collective(name: str) -> Callable[..., Any]:
    def start(self: StrictComm, *arguments: Any, **named: Any) -> MPI.Request:
        def begin() -> Operation:
            blocking = name[1:].capitalize() if name[0] == "I" else name.removesuffix("_init")
            nonblocking = f"I{blocking.lower()}"
            request = getattr(super(StrictComm, self), nonblocking)(*arguments, **named)
            return _comparing(self, name, blocking, request, arguments, named)

        if name.endswith("_init"):
            made: StrictRequest = StrictPrequest(None, begin, name, here())
        else:
            made = StrictRequest(None, begin())
        frame = sys._getframe(1)
        made.made = name, self, NO_PEER, -1, frame.f_code, frame.f_lasti
        requests_made.add_request(made)
        return made

    return start


def _comparing(
    comm: StrictComm,
    name: str,
    blocking: str,
    request: Any,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Operation:
    if comm._exchange is None:
        return PlainOperation(name, request, here())
    names = {
        "Bcast": ("buf", "root"),
        "Reduce": ("sendbuf", "recvbuf", "op", "root"),
        "Reduce_scatter": ("sendbuf", "recvbuf", "recvcounts", "op"),
    }.get(
        blocking,
        ("sendbuf", "recvbuf", "root" if blocking[0] in "GS" and blocking not in ("Scan",) else "op"),
    )
    given = dict(zip(names, arguments, strict=False)) | named
    is_root = comm.rank == given.get("root", 0)
    buffers: list[tuple[Any, bool]] = []
    for key in "buf", "sendbuf", "recvbuf":
        buffer = given.get(key)
        if buffer is None or isinstance(buffer, MPI.InPlaceType) or blocking.endswith(("w", "v")):
            continue
        if (key == "recvbuf" and blocking in TO_ROOT and not is_root) or (
            key == "sendbuf" and blocking in FROM_ROOT and not is_root
        ):
            continue
        buffers.append((buffer, key == "recvbuf" or (key == "buf" and not is_root)))
    rooted = blocking in (*FROM_ROOT, *TO_ROOT)
    count: int | None = None
    dtype = ""
    compared = {"Bcast": "buf", "Reduce": "sendbuf", "Allreduce": "sendbuf", "Scan": "sendbuf"}.get(blocking)
    if compared and given.get(compared) is not None and not isinstance(given[compared], MPI.InPlaceType):
        signature = of_message(given[compared])
        count, dtype = signature.elements, signature.dtype
    op = given.get("op", MPI.SUM) if "op" in names and blocking != "Barrier" else None
    reduction = next((key for key in ("SUM", "PROD", "MAX", "MIN") if op == getattr(MPI, key)), None)
    call = (given.get("root", 0) if rooted else None, count, dtype or None, reduction)
    made = CollectiveOperation(comm._exchange, name, call, request, buffers, here())
    made.what = name
    return made


for _name in "Send", "Ssend", "Rsend", "Bsend", "send", "ssend", "bsend":
    setattr(StrictComm, _name, _blocking_send(_name))
for _name in "Isend", "Issend", "Irsend", "Ibsend", "isend", "issend", "ibsend":
    setattr(StrictComm, _name, _nonblocking_send(_name))
for _name in "Irecv", "irecv":
    setattr(StrictComm, _name, _nonblocking_receive(_name))
for _name in "Send_init", "Ssend_init", "Rsend_init", "Bsend_init":
    setattr(StrictComm, _name, _persistent_send(_name))
setattr(StrictComm, "Recv_init", _persistent_receive)  # noqa: B010
for _name in NONBLOCKING_COLLECTIVES:
    if hasattr(MPI.Intracomm, _name) and "eighbor" not in _name:
        setattr(StrictComm, _name, _collective(_name))
