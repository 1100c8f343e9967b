"""The communicators of strict mode: sends wait for their receives, and the ranks compare their operations."""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from mpi4py import MPI

from mpiwatch import arguments, messages
from mpiwatch import requests as polling
from mpiwatch.arguments import TO_ROOT, is_in_place, plain_name
from mpiwatch.communicators import WatchedComm
from mpiwatch.forwarding import add_methods
from mpiwatch.places import here
from mpiwatch.report import CallRecord
from mpiwatch.signatures import of_message
from mpiwatch.strict import exchange as exchanges
from mpiwatch.strict import freed, operations
from mpiwatch.strict.exchange import Exchange, clock
from mpiwatch.strict.memory import Region
from mpiwatch.strict.operations import Operation
from mpiwatch.strict.requests import StrictPrequest, StrictRequest

SENT_BY_ROOT = ("bcast", *arguments.FROM_ROOT)
REDUCING = "reduce", "allreduce", "scan", "exscan"

# For each collective, the argument that must have the same count and dtype on all ranks.
COMPARED = {"bcast": "buf", "reduce": "sendbuf", "allreduce": "sendbuf", "scan": "sendbuf"}


exchanges_of: WeakKeyDictionary[Any, Exchange] = WeakKeyDictionary()  # by the channel of their communicator


class StrictComm(WatchedComm):
    """A watched communicator whose `Send` and `send` are synchronous and whose messages are compared.

    Messages on communicators made by Idup have no headers.
    """

    _exchange: Exchange | None = None

    def open_exchange(self) -> None:
        """Open the exchange of headers for this communicator. Collective."""
        channel = self._channel
        if channel is None:
            return
        self._exchange = exchanges_of[channel] = Exchange(self, channel.members)

    @property
    def _compares_amounts(self) -> bool:
        return self._exchange is not None

    def _renew(self, duplicate: Callable[[], MPI.Intracomm]) -> None:
        super()._renew(duplicate)
        if self._exchange is not None:
            self._exchange.renew(duplicate())

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        if is_ready:
            new.open_exchange()
        freed.track(new, freed.COMMUNICATOR)

    def _end(self, name: str) -> None:
        super()._end(name)
        freed.forget(self)
        if self._exchange is not None:
            exchanges_of.pop(self._channel, None)
            self._exchange.close()
            self._exchange = None

    def Get_group(self) -> MPI.Group:
        return MPI.Group.adopt(super().Get_group())  # type: ignore[attr-defined]

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

    def _start(self, name: str, buf: Any, peer: int, tag: int) -> MPI.Request:
        if not name.endswith("_init"):
            return StrictRequest(None, self._operation(name, buf, peer, tag))
        self._check(peer, tag, receives=name == "Recv_init")
        return StrictPrequest(None, lambda: self._operation(name, buf, peer, tag), name, here())

    def _operation(self, name: str, buf: Any, peer: int, tag: int) -> Operation:
        """Start a send or a receive; one that goes nowhere or has no header is one of the MPI library."""
        receives = "recv" in name.lower()
        self._check(peer, tag, receives)
        if self._exchange is None or peer == MPI.PROC_NULL:
            plain = name.removesuffix("_init")
            plain = messages.STARTED_BY.get(plain, plain)
            operation = Operation(name, here(), getattr(MPI.Intracomm, plain)(self, buf, peer, tag))
            operation.may_be_freed = not receives
            return operation
        kind = operations.ReceiveOperation if receives else operations.SendOperation
        return kind(self._exchange, name, buf, peer, tag, here())

    def _receive_object(self, name: str, source: int, tag: int, status: Any, sends_too: bool = False) -> Any:
        if self._exchange is None:
            return super()._receive_object(name, source, tag, status, sends_too)
        call = self._operation("recv", None, source, tag)
        self._receive(name, StrictRequest(None, call), None, source, tag, status, sends_too)
        return call.received

    def _probe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Any:
        exchange = self._exchange
        self._check(source, tag, receives=True)
        if exchange is None or source == MPI.PROC_NULL:
            return super()._probe(name, source, tag, status)
        with exchanges.lock:
            exchange.progress()
            header = exchange.find(source, tag)
            if header is not None and status is not None:
                status.source, status.tag = header.source, header.tag
                status.Set_elements(MPI.BYTE, header.signature.nbytes)
            if header is None:  # the program may be probing in a loop: let its receives go on
                exchanges.progress()
            if name.lower() == "iprobe":
                return header is not None
            if header is None:
                return None
            message: MPI.Message | None = getattr(exchange.shadow, name)(header.source, header.number)
            if message is not None:
                exchange.unexpected.remove(header)
                clock.merge(header.clock)
            return message

    def _do_isendrecv(
        self, name: str, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int
    ) -> Any:
        receive = self._operation("Irecv", recvbuf, source, recvtag)
        send = self._operation("Isend", sendbuf, dest, sendtag)
        call = operations.BothOperation(name, send, receive, f"{name} to rank {dest} and from rank {source}")
        return polling.polled(StrictRequest(None, call), name, self, source, recvtag, messages._getframe(2))

    def _start_collective(self, name: str, kwargs: dict[str, Any]) -> MPI.Request:
        """Start a collective; the ranks compare their operations."""
        if "eighbor" in name:
            return super()._start_collective(name, kwargs)
        plain = plain_name(name)

        def begin() -> Operation:
            of_started = {key: value for key, value in kwargs.items() if key != "info"}
            request = getattr(MPI.Intracomm, f"I{plain}")(self, **of_started)
            if self._exchange is None:
                return Operation(name, here(), request)
            regions = [
                Region(name, here(), buffer, is_written)
                for buffer, is_written in _buffers(plain, kwargs, self.rank == kwargs.get("root", 0))
            ]
            call = _described(name, plain, kwargs)
            return operations.CollectiveOperation(self._exchange, call, request, regions)

        if name.endswith("_init"):
            return StrictPrequest(None, begin, name, here())
        return StrictRequest(None, begin())


add_methods(StrictComm, ("Bsend", "bsend"), "_do_send")
add_methods(StrictComm, ("Isend", "Irecv"), "_do_start")
add_methods(StrictComm, ("Isendrecv",), "_do_isendrecv")


def note_collective(channel: Any, name: str, root: int) -> None:
    """Note which ranks' steps happened before this collective ends; all ranks have joined it."""
    exchange = exchanges_of.get(channel)
    if exchange is None or name in ("Free", "Disconnect"):
        return
    mine = np.array(clock.times, np.int64)
    everyone = np.empty((len(exchange.members), len(mine)), np.int64)
    MPI.Intracomm.Allgather(exchange.shadow, mine, everyone)
    if name.lower() in SENT_BY_ROOT:
        everyone = everyone[[root]]
    elif name.lower() in TO_ROOT and exchange.rank != root:
        return
    clock.merge(everyone.max(axis=0).tolist())


def _buffers(plain: str, kwargs: dict[str, Any], is_root: bool) -> list[tuple[Any, bool]]:
    """Return the buffers that a collective uses on this rank, and whether it writes to them."""
    ignored = {} if is_root else {"recvbuf": TO_ROOT, "sendbuf": SENT_BY_ROOT}
    return [
        (kwargs[key], key == "recvbuf" or (key == "buf" and not is_root))
        for key in ("buf", "sendbuf", "recvbuf")
        if not (is_in_place(kwargs.get(key)) or plain.endswith(("w", "v")))
        and plain not in ignored.get(key, ())
    ]


def _described(name: str, plain: str, kwargs: dict[str, Any]) -> CallRecord:
    """Return what the ranks compare of a non-blocking collective."""
    root = kwargs.get("root", 0) if plain in (*SENT_BY_ROOT, *TO_ROOT) else None
    compared = kwargs.get(COMPARED.get(plain, ""))
    signature = None if is_in_place(compared) else of_message(compared)
    count, dtype = (None, None) if signature is None else (signature.elements, signature.dtype or None)
    reduction = arguments.REDUCTIONS.get(id(kwargs["op"])) if plain.startswith(REDUCING) else None
    return CallRecord(0, 0, name, root, count, dtype, reduction, here(), 0)
