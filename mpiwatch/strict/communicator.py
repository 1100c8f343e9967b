"""The communicator of strict mode: sends wait for their receives, and the ranks compare their calls.

It is a watched communicator above another way for messages to travel: see `Exchange`.
"""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch.buffers import arguments_of, is_in_place
from mpiwatch.communicators import WatchedComm
from mpiwatch.messages import STARTED_BY, sending, starting
from mpiwatch.opcodes import OPERATION_NAMES, UNKNOWN
from mpiwatch.requests import polled
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
    clock,
    lock,
)
from mpiwatch.strict.findings import StrictError, forget, here, track
from mpiwatch.strict.memory import Region, Signature, of_each, of_message

FROM_ROOT = ("Bcast", "Scatter", "Scatterv", "bcast", "scatter")
TO_ROOT = ("Reduce", "Gather", "Gatherv", "reduce", "gather")
REDUCING = "Reduce", "Allreduce", "Scan", "Exscan"
REDUCTIONS = ("SUM", "PROD", "MAX", "MIN")  # those that non-blocking collectives compare
# Blocking collective -> the argument whose count and dtype are the same on all ranks.
COMPARED = {"Bcast": "buf", "Reduce": "sendbuf", "Allreduce": "sendbuf", "Scan": "sendbuf"}
# Collectives with counts for each rank, and whether the send and the receive buffer have such counts.
AMOUNTS = {
    "Gatherv": (False, True),
    "Scatterv": (True, False),
    "Allgatherv": (False, True),
    "Alltoallv": (True, True),
}


class StrictComm(WatchedComm):
    """A watched communicator whose `Send` and `send` are synchronous and whose messages are compared.

    Messages on communicators made by Idup have no headers.
    """

    _exchange: Exchange | None = None

    def begin(self) -> None:
        """Open the exchange of headers for this communicator. Collective."""
        channel = self._channel
        if channel is None:
            return
        self._exchange = exchange = Exchange(self, channel.members)
        self._renew_with(exchange.shadow, exchange.forget)

        def has_begun(operation: int | str, root: int) -> None:
            name = operation if isinstance(operation, str) else OPERATION_NAMES[operation]
            if exchange.amounts is not None:
                _compare_amounts(exchange, name)
            if name not in ("Free", "Disconnect"):
                _merge_clocks(exchange, name, root)

        channel.has_begun = has_begun

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
            plain = STARTED_BY.get(plain, plain)
            return Operation(name, here(), getattr(MPI.Intracomm, plain)(self, buf, peer, tag))
        kind = ReceiveOperation if receives else SendOperation
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
        with lock:
            exchange.progress()
            header = exchange.find(source, tag)
            if header is not None and status is not None:
                status.source, status.tag = header.source, header.tag
                status.Set_elements(MPI.BYTE, header.signature.nbytes)
            if name.lower() == "iprobe":
                return header is not None
            if header is None:
                return None
            message: MPI.Message | None = getattr(exchange.shadow, name)(header.source, header.number)
            if message is not None:
                exchange.unexpected.remove(header)
                clock.merge(header.clock)
            return message

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> MPI.Request:
        receive = self._operation("Irecv", recvbuf, source, recvtag)
        send = self._operation("Isend", sendbuf, dest, sendtag)
        call = BothOperation(send, receive, f"Isendrecv to rank {dest} and from rank {source}")
        made: MPI.Request = polled(
            StrictRequest(None, call), "Isendrecv", self, source, recvtag, sys._getframe(1)
        )
        return made

    def _announce(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> None:
        """Note what this rank sends and expects; other collectives are compared on all communicators."""
        if self._exchange is None or name not in AMOUNTS:
            return
        is_root, peers = root in (UNKNOWN, self.rank), range(self.size) if root == UNKNOWN else [root]
        amounts: list[dict[int, Signature]] = []
        for buffer, has_counts in zip((sendbuf, recvbuf), AMOUNTS[name], strict=True):
            if is_in_place(buffer) or (has_counts and not is_root):
                amounts.append({})
            elif has_counts:
                amounts.append(of_each(buffer, self.size))
            else:
                amounts.append(dict.fromkeys(peers, of_message(buffer)))
        self._exchange.amounts = amounts[0], amounts[1]

    def _start_collective(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> MPI.Request:
        """Start a collective; the ranks compare their calls."""
        if "eighbor" in name:
            return super()._start_collective(name, arguments, named)
        blocking = name[1:].capitalize() if name[0] == "I" else name.removesuffix("_init")

        def begin() -> Operation:
            request = getattr(MPI.Intracomm, f"I{blocking.lower()}")(self, *arguments, **named)
            if self._exchange is None:
                return Operation(name, here(), request)
            given = arguments_of(name, arguments, named)
            regions = [
                Region(name, here(), buffer, is_written)
                for buffer, is_written in _buffers(blocking, given, self.rank == given.get("root", 0))
            ]
            return CollectiveOperation(self._exchange, _described(name, blocking, given), request, regions)

        if name.endswith("_init"):
            return StrictPrequest(None, begin, name, here())
        return StrictRequest(None, begin())


for _name in "Bsend", "bsend":
    setattr(StrictComm, _name, sending(_name))
for _name in "Isend", "Irecv":
    setattr(StrictComm, _name, starting(_name))


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
