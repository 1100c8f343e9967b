"""The base of strict communicators: the exchange of headers, and the start of sends and receives."""

# ruff: noqa: PLR0917

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch.collectives import Channel
from mpiwatch.communicators import WatchedComm
from mpiwatch.message import check_message
from mpiwatch.opcodes import OPERATION_NAMES
from mpiwatch.requests import note
from mpiwatch.strict import requests_made
from mpiwatch.strict.exchange import Clock, Exchange, Traffic
from mpiwatch.strict.findings import StrictError
from mpiwatch.strict.objects import here
from mpiwatch.strict.operations import Operation, ReceiveOperation, SendOperation
from mpiwatch.strict.requests import StrictRequest

clock, traffic = Clock(0, 1), Traffic()  # of this process; see `begin_clock`


def begin_clock(rank: int, size: int) -> None:
    """Begin counting the steps of this rank of the world."""
    global clock  # noqa: PLW0603
    clock = Clock(rank, size)


FROM_ROOT = ("Bcast", "Scatter", "Scatterv", "bcast", "scatter")
TO_ROOT = ("Reduce", "Gather", "Gatherv", "reduce", "gather")
MODES = {
    "Send": "Issend",
    "Ssend": "Issend",
    "Rsend": "Issend",
    "Bsend": "Ibsend",
    "Isend": "Issend",
    "Issend": "Issend",
    "Irsend": "Issend",  # not Irsend: the message itself is received after the receive was posted
    "Ibsend": "Ibsend",
    "Send_init": "Issend",
    "Ssend_init": "Issend",
    "Rsend_init": "Issend",
    "Bsend_init": "Ibsend",
}


class StrictBase(WatchedComm):
    """A watched communicator whose messages have headers."""

    _exchange: Exchange | None = None  # None for communicators made by Idup, whose messages have no headers

    def begin(self) -> None:
        """Open the exchange of headers for this communicator. Collective."""
        channel = self._channel
        if not isinstance(channel, Channel):
            return
        self._exchange = exchange = Exchange(self, channel.members, clock, traffic)
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

    def _check(self, peer: int, tag: int, receives: bool) -> None:
        if self == MPI.COMM_NULL:
            raise MPI.Exception(MPI.ERR_COMM)
        if self.watch is not None:
            self.watch.check_process()
        if not (0 <= peer < self.size or peer == MPI.PROC_NULL or (receives and peer == MPI.ANY_SOURCE)):
            raise MPI.Exception(MPI.ERR_RANK)
        if not (0 <= tag <= _largest_tag() or (receives and tag == MPI.ANY_TAG)):
            raise MPI.Exception(MPI.ERR_TAG)

    def _sending(self, name: str, message: Any, dest: int, tag: int) -> Operation | None:
        """Start a send; None if the message goes nowhere or has no header."""
        self._check(dest, tag, receives=False)
        if name[0].isupper():
            check_message(self, name, message, dest)
        if self._exchange is None or dest == MPI.PROC_NULL:
            return None
        mode = MODES[name[0].upper() + name[1:]]
        call = SendOperation(self._exchange, name, mode, message, dest, tag, here())
        call.what = f"{name} to rank {dest}, tag {tag}"
        return call

    def _receiving(self, name: str, buf: Any, source: int, tag: int) -> Operation | None:
        self._check(source, tag, receives=True)
        if name[0].isupper():
            check_message(self, name, buf, source)
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

    def _complete_call(
        self, name: str, call: Operation, peer: int, tag: int, sends_too: bool = False
    ) -> None:
        try:
            self._wait(name, call.advance, peer, tag, sends_too)
        except BaseException:
            call.cancel()
            raise


def _largest_tag() -> int:
    return int(MPI.COMM_SELF.Get_attr(MPI.TAG_UB) or 32767)


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
    mine = np.array(exchange.clock.times, np.int64)
    everyone = np.empty((len(exchange.members), len(mine)), np.int64)
    MPI.Intracomm.Allgather(exchange.shadow, mine, everyone)
    if name in FROM_ROOT:
        everyone = everyone[[root]]
    elif name in TO_ROOT and exchange.rank != root:
        return
    exchange.clock.merge([int(time) for time in everyone.max(axis=0)])
