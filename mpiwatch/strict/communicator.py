"""The communicator of strict mode: sends wait for their receives, and the ranks compare their calls."""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from mpiwatch import under_way
from mpiwatch.collectives import Channel
from mpiwatch.communicators import WatchedComm
from mpiwatch.message import arguments_of, check_message, is_in_place
from mpiwatch.opcodes import NONBLOCKING_COLLECTIVES, OPERATION_NAMES, OPERATIONS
from mpiwatch.requests import NO_PEER, counting_probe, note
from mpiwatch.strict.calls import (
    BothOperation,
    CollectiveCall,
    CollectiveOperation,
    Exchange,
    Operation,
    ReceiveOperation,
    SendOperation,
    StrictPrequest,
    StrictRequest,
    add_request,
    clock,
    lock,
)
from mpiwatch.strict.findings import (
    StrictError,
    forget,
    here,
    track,
)
from mpiwatch.strict.memory import Region, Signature, of_each, of_message

FROM_ROOT = ("Bcast", "Scatter", "Scatterv", "bcast", "scatter")
TO_ROOT = ("Reduce", "Gather", "Gatherv", "reduce", "gather")
REDUCING = "Reduce", "Allreduce", "Scan", "Exscan"
REDUCTIONS = ("SUM", "PROD", "MAX", "MIN")  # those that non-blocking collectives compare
# Blocking collective -> the argument whose count and dtype are the same on all ranks.
COMPARED = {"Bcast": "buf", "Reduce": "sendbuf", "Allreduce": "sendbuf", "Scan": "sendbuf"}


class StrictComm(WatchedComm):
    """A watched communicator whose `Send` and `send` are synchronous and whose messages are compared.

    Messages on communicators made by Idup have no headers.
    """

    _exchange: Exchange | None = None

    def begin(self) -> None:
        """Open the exchange of headers for this communicator. Collective."""
        channel = self._channel
        if not isinstance(channel, Channel):
            return
        self._exchange = exchange = Exchange(self, channel.members)
        self._renew_with(exchange.shadow, exchange.forget)
        inner = channel.begin_collective

        def begin_collective(
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
            if exchange.amounts is not None:
                _compare_amounts(exchange, name)
            if name not in ("Free", "Disconnect"):
                _merge_clocks(exchange, name, root)

        channel.begin_collective = begin_collective  # type: ignore[method-assign]

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        if is_ready:
            new.begin()
        track(new, "communicator")

    def Free(self) -> None:
        super().Free()
        self._ended()

    def Disconnect(self) -> None:
        super().Disconnect()
        self._ended()

    def _ended(self) -> None:
        forget(self)
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def Get_group(self) -> MPI.Group:
        return MPI.Group.adopt(super().Get_group())  # type: ignore[attr-defined]

    # Messages

    def _check(self, peer: int, tag: int, receives: bool) -> None:
        if self == MPI.COMM_NULL:
            raise MPI.Exception(MPI.ERR_COMM)
        if self.watch is not None:
            self.watch.check_process()
        if not (0 <= peer < self.size or peer == MPI.PROC_NULL or (receives and peer == MPI.ANY_SOURCE)):
            raise MPI.Exception(MPI.ERR_RANK)
        largest_tag = int(MPI.COMM_SELF.Get_attr(MPI.TAG_UB) or 32767)
        if not (0 <= tag <= largest_tag or (receives and tag == MPI.ANY_TAG)):
            raise MPI.Exception(MPI.ERR_TAG)

    def _started(self, name: str, buf: Any, peer: int, tag: int) -> Operation:
        """Start a send or a receive; one that goes nowhere or has no header is one of the MPI library."""
        receives = "recv" in name.lower()
        self._check(peer, tag, receives)
        if name[0].isupper():
            check_message(self, name, buf, peer)
        if self._exchange is None or peer == MPI.PROC_NULL:
            plain = name.removesuffix("_init")
            start = plain if plain[0] in "Ii" else f"I{plain.lower()}" if name[0].isupper() else f"i{plain}"
            return Operation(name, here(), getattr(MPI.Intracomm, start)(self, buf, peer, tag))
        kind = ReceiveOperation if receives else SendOperation
        return kind(self._exchange, name, buf, peer, tag, here())

    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        if self._exchange is None:
            super().Recv(buf, source, tag, status)
        else:
            request = StrictRequest(None, self._started("Recv", buf, source, tag))
            self._complete("Recv", request, source, tag, status, receives=True)

    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        if self._exchange is None:
            return super().recv(buf, source, tag, status)
        call = self._started("recv", None, source, tag)
        self._complete("recv", StrictRequest(None, call), source, tag, status, receives=True)
        return call.received

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
        if self._exchange is None:
            super().Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        else:
            receiving = self._started("Recv", recvbuf, source, recvtag)
            sending = self._started("Isend", sendbuf, dest, sendtag)
            self._exchanged("Sendrecv", sending, dest, sendtag, receiving, source, recvtag, status)

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
        if self._exchange is None:
            return super().sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        receiving = self._started("recv", None, source, recvtag)
        sending = self._started("isend", sendobj, dest, sendtag)
        self._exchanged("sendrecv", sending, dest, sendtag, receiving, source, recvtag, status)
        return receiving.received

    def _exchanged(
        self,
        name: str,
        sending: Operation,
        dest: int,
        sendtag: int,
        receiving: Operation,
        source: int,
        recvtag: int,
        status: MPI.Status | None,
    ) -> None:
        """Wait for a receive, and then for the send that was started with it."""
        request = StrictRequest(None, sending)
        sends_too = dest != MPI.PROC_NULL
        try:
            self._complete(
                name,
                StrictRequest(None, receiving),
                source,
                recvtag,
                status,
                receives=True,
                sends_too=sends_too,
            )
        except BaseException:
            under_way.keep(request)
            raise
        self._complete(name[:4], request, dest, sendtag)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        if self._exchange is None or not isinstance(buf, np.ndarray):
            super().Sendrecv_replace(buf, dest, sendtag, source, recvtag, status)
        else:
            self.Sendrecv(np.array(buf), dest, sendtag, buf, source, recvtag, status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> MPI.Request:
        receiving = self._started("Irecv", recvbuf, source, recvtag)
        sending = self._started("Isend", sendbuf, dest, sendtag)
        call = BothOperation(sending, receiving, f"Isendrecv to rank {dest} and from rank {source}")
        return self._noted(StrictRequest(None, call), "Isendrecv", source, recvtag)

    def _noted(self, request: StrictRequest, name: str, peer: int, tag: int) -> Any:
        """Note the line and the arguments of the call that has made a request; return the request."""
        frame = sys._getframe(2)
        request.made = name, self, peer, tag, frame.f_code, frame.f_lasti
        if not isinstance(request, StrictPrequest) and peer != NO_PEER:
            note(request, name)
        add_request(request)
        return request

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

    # Collectives. Every watched communicator compares the blocking ones, apart from counts for each rank.

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        sent = {} if is_in_place(sendbuf) else {root: of_message(sendbuf)}
        self._announce(sent, of_each(recvbuf, self.size) if self.rank == root else {})
        super().Gatherv(sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        expected = {} if is_in_place(recvbuf) else {root: of_message(recvbuf)}
        self._announce(of_each(sendbuf, self.size) if self.rank == root else {}, expected)
        super().Scatterv(sendbuf, recvbuf, root)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = {} if is_in_place(sendbuf) else dict.fromkeys(range(self.size), of_message(sendbuf))
        self._announce(sent, of_each(recvbuf, self.size))
        super().Allgatherv(sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = {} if is_in_place(sendbuf) else of_each(sendbuf, self.size)
        self._announce(sent, of_each(recvbuf, self.size))
        super().Alltoallv(sendbuf, recvbuf)

    def _announce(self, sent: dict[int, Signature], expected: dict[int, Signature]) -> None:
        if self._exchange is not None:
            self._exchange.amounts = sent, expected


def _compare_amounts(exchange: Exchange, name: str) -> None:
    """Raise StrictError on all ranks if a rank sends another amount than a rank expects from it."""
    everyone = exchange.shadow.allgather(exchange.amounts)
    exchange.amounts = None
    for sender, (sent, _) in enumerate(everyone):
        for receiver, amount in sent.items():
            expected = everyone[receiver][1].get(sender, amount)
            if amount.nbytes != expected.nbytes:
                raise StrictError(
                    f"{name}: rank {receiver} expects {expected} from rank {sender}, which sends {amount}"
                )


def _merge_clocks(exchange: Exchange, name: str, root: int) -> None:
    """Note which ranks' steps happened before this collective ends; all ranks have joined it."""
    mine = np.array(clock.times, np.int64)
    everyone = np.empty((len(exchange.members), len(mine)), np.int64)
    MPI.Intracomm.Allgather(exchange.shadow, mine, everyone)
    if name in FROM_ROOT:
        everyone = everyone[[root]]
    elif name in TO_ROOT and exchange.rank != root:
        return
    clock.merge(everyone.max(axis=0).tolist())


def _array(buf: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    return buf, dest, tag


def _object(obj: Any, dest: int, tag: int = 0) -> tuple[Any, int, int]:
    return obj, dest, tag


def _received(buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> tuple[Any, int, int]:
    return buf, source, tag


def _arguments(name: str) -> Callable[..., tuple[Any, int, int]]:
    """Return a function with the parameters of a call; it returns the message, the peer and the tag."""
    return _received if "recv" in name.lower() else _array if name[0].isupper() else _object


def _blocking_send(name: str) -> Callable[..., Any]:
    given = _arguments(name)
    shown = name if name in OPERATIONS else "Send" if name[0].isupper() else "send"

    def send(self: StrictComm, *arguments: Any, **named: Any) -> None:
        buf, dest, tag = given(*arguments, **named)
        if self._exchange is None:
            getattr(super(StrictComm, self), name)(buf, dest, tag)
        else:
            self._complete(shown, StrictRequest(None, self._started(name, buf, dest, tag)), dest, tag)

    return send


def _nonblocking(name: str) -> Callable[..., Any]:
    given = _arguments(name)

    def start(self: StrictComm, *arguments: Any, **named: Any) -> MPI.Request:
        buf, peer, tag = given(*arguments, **named)
        return self._noted(StrictRequest(None, self._started(name, buf, peer, tag)), name, peer, tag)

    return start


def _persistent(name: str) -> Callable[..., Any]:
    given = _arguments(name)

    def init(self: StrictComm, *arguments: Any, **named: Any) -> MPI.Prequest:
        buf, peer, tag = given(*arguments, **named)
        self._check(peer, tag, receives=name == "Recv_init")
        check_message(self, name, buf, peer)

        def start() -> Operation:
            return self._started(name, buf, peer, tag)

        return self._noted(StrictPrequest(None, start, name, here()), name, peer, tag)

    return init


def _taking(name: str) -> Callable[..., Any]:
    """Return Improbe or improbe, which take a message out of the exchange."""

    def take_message(
        self: StrictComm,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message | None:
        exchange = self._exchange
        if exchange is None or source == MPI.PROC_NULL:
            return getattr(super(StrictComm, self), name)(source, tag, status)
        with lock:
            if not self.Iprobe(source, tag, status):
                return None
            header = exchange.find(source, tag)
            assert header is not None
            message: MPI.Message | None = getattr(exchange.shadow, name)(header.source, header.number)
            if message is not None:
                exchange.unexpected.remove(header)
                clock.merge(header.clock)
            return message

    return take_message


def _collective(name: str) -> Callable[..., Any]:
    """Return a non-blocking or persistent collective; the ranks compare their calls."""
    blocking = name[1:].capitalize() if name[0] == "I" else name.removesuffix("_init")
    nonblocking = f"I{blocking.lower()}"

    def start(self: StrictComm, *arguments: Any, **named: Any) -> MPI.Request:
        def begin() -> Operation:
            request = getattr(super(StrictComm, self), nonblocking)(*arguments, **named)
            if self._exchange is None:
                return Operation(name, here(), request)
            given = arguments_of(blocking, arguments, named)
            regions = [
                Region(name, here(), buffer, is_written)
                for buffer, is_written in _buffers(blocking, given, self.rank == given.get("root", 0))
            ]
            return CollectiveOperation(self._exchange, _described(name, blocking, given), request, regions)

        if name.endswith("_init"):
            made: StrictRequest = StrictPrequest(None, begin, name, here())
        else:
            made = StrictRequest(None, begin())
        return self._noted(made, name, NO_PEER, -1)

    return start


def _buffers(blocking: str, given: dict[str, Any], is_root: bool) -> list[tuple[Any, bool]]:
    """Return the buffers that a collective uses on this rank, and whether it writes to them."""
    ignored = {} if is_root else {"recvbuf": TO_ROOT, "sendbuf": FROM_ROOT}
    return [
        (given[key], key == "recvbuf" or (key == "buf" and not is_root))
        for key in ("buf", "sendbuf", "recvbuf")
        if not (is_in_place(given.get(key)) or blocking.endswith(("w", "v")))
        and blocking not in ignored.get(key, ())
    ]


def _described(name: str, blocking: str, given: dict[str, Any]) -> CollectiveCall:
    """Return what the ranks compare of a non-blocking collective."""
    root = given.get("root", 0) if blocking in (*FROM_ROOT, *TO_ROOT) else None
    compared = given.get(COMPARED.get(blocking, ""))
    signature = None if is_in_place(compared) else of_message(compared)
    count, dtype = (None, None) if signature is None else (signature.elements, signature.dtype or None)
    op = given.get("op", MPI.SUM) if blocking.startswith(REDUCING) else None
    reduction = next((each for each in REDUCTIONS if op == getattr(MPI, each)), None)
    return CollectiveCall(name, root, count, dtype, reduction, here(), clock.times)


for _name in "Send", "Ssend", "Rsend", "Bsend", "send", "ssend", "bsend":
    setattr(StrictComm, _name, _blocking_send(_name))
for _name in "Isend", "Issend", "Irsend", "Ibsend", "isend", "issend", "ibsend", "Irecv", "irecv":
    setattr(StrictComm, _name, _nonblocking(_name))
for _name in "Send_init", "Ssend_init", "Rsend_init", "Bsend_init", "Recv_init":
    setattr(StrictComm, _name, _persistent(_name))
for _name in "Improbe", "improbe":
    setattr(StrictComm, _name, _taking(_name))
for _name in NONBLOCKING_COLLECTIVES:
    if hasattr(MPI.Intracomm, _name) and "eighbor" not in _name:
        setattr(StrictComm, _name, _collective(_name))
