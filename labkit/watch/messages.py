"""Blocking messages that can be interrupted, and that end with a report if the other rank takes no part."""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic, sleep
from types import FrameType
from typing import Any, Literal

from mpi4py import MPI

from labkit.comm import waiting
from labkit.comm.message import flat, parse
from labkit.watch.flight_recorder.layout import CellState, WaitingIn
from labkit.watch.flight_recorder.opcodes import OPERATIONS
from labkit.watch.rendezvous import ChannelComm, NoChannel
from labkit.watch.wait import NAP_S, Waiting, Watch


class MessageWait(Waiting):
    """Waiting for a message to arrive or to be taken; `peer` is a rank of the world, or -1 for any."""

    def __init__(
        self,
        watch: Watch,
        members: list[int],
        deadline_s: float,
        operation: int,
        peer: int,
        tag: int,
        frame: FrameType,
    ) -> None:
        super().__init__(watch, members, deadline_s)
        self.operation, self.peer, self.tag, self.frame = operation, peer, tag, frame

    def announce(self) -> None:
        slot = self.watch.slot
        self.watch.post_place(self.frame)
        slot.message_operation, slot.message_peer, slot.message_tag = self.operation, self.peer, self.tag
        slot.waiting_in = WaitingIn.MESSAGE

    def cannot_complete(self, patience_s: float) -> bool:
        peers = [self.peer] if self.peer >= 0 else [rank for rank in self.members if rank != self.watch.rank]
        return bool(peers) and all(self.watch.has_ended(peer, patience_s) for peer in peers)


class WatchedMessages(ChannelComm):
    """Send, receive and the like, done by their non-blocking twins, which are polled until they are done."""

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._complete("Send", super().Isend(buf, dest, tag), dest, tag)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._complete("Ssend", super().Issend(buf, dest, tag), dest, tag)

    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        self._complete("Recv", super().Irecv(buf, source, tag), source, tag, status, receives=True)

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
        receiving = super().Irecv(recvbuf, source, recvtag)
        try:
            sending = super().Isend(sendbuf, dest, sendtag)
        except BaseException:
            _cancel(receiving)
            raise
        self._complete_both("Sendrecv", sending, dest, sendtag, receiving, source, recvtag, status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        values = flat(buf)
        if values is None:  # nothing here knows how to copy it
            super().Sendrecv_replace(buf, dest, sendtag, source, recvtag, status)
            return
        datatype = parse(buf).datatype
        copy = values.copy()
        sending = super().Isend(copy if datatype is None else [copy, datatype], dest, sendtag)
        receiving = super().Irecv(buf, source, recvtag)
        self._complete_both("Sendrecv_replace", sending, dest, sendtag, receiving, source, recvtag, status)

    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        has_arrived = super().Iprobe
        self._wait("Probe", lambda: has_arrived(source, tag, status), source, tag)
        return True

    def Mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        return self._matched("Mprobe", source, tag, status)

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
            received = self._matched("sendrecv", source, recvtag, status).recv(status)
        except BaseException:
            _keep(sending)
            raise
        self._complete("send", sending, dest, sendtag)
        return received

    def probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        has_arrived = super().iprobe
        self._wait("probe", lambda: has_arrived(source, tag, status), source, tag)
        return True

    def mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        return self._matched("mprobe", source, tag, status)

    def _matched(self, name: str, source: int, tag: int, status: MPI.Status | None) -> MPI.Message:
        found: list[MPI.Message] = []
        probe = super().Improbe if name == "Mprobe" else super().improbe

        def has_arrived() -> bool:
            message = probe(source, tag, status)
            if message is not None:
                found.append(message)
            return bool(found)

        self._wait(name, has_arrived, source, tag)
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
            self._complete(name, receiving, source, recvtag, status, receives=True)
        except BaseException:
            _keep(sending)
            raise
        self._complete("Send", sending, dest, sendtag)

    def _complete(
        self,
        name: str,
        request: MPI.Request,
        peer: int,
        tag: int,
        status: MPI.Status | None = None,
        receives: bool = False,
    ) -> None:
        try:
            self._wait(name, lambda: request.Test(status), peer, tag)
        except BaseException:
            if receives:
                _cancel(request)
            else:
                _keep(request)
            raise

    def _wait(self, name: str, is_done: Callable[[], bool], peer: int, tag: int) -> None:
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
        )
        channel.watch.wait(is_done, wait)


# Sends that no rank has taken yet: their buffers must stay until then.
_unfinished: list[MPI.Request] = []
DRAIN_S = 2.0


def drain(watch: Watch) -> None:
    """Receive and discard, before MPI ends, what hangs have left on the watched communicators.

    MPICH aborts in MPI_Finalize if a large message was never received, and cannot cancel one. So each rank
    discards messages until all ranks are here and its own sends are done, for at most DRAIN_S.
    """
    if MPI.Is_finalized() or not watch.recorder.head.epoch:  # no rank has seen a hang
        return
    watch.end_cell(CellState.RETURNED, "")
    deadline = monotonic() + DRAIN_S
    is_last_round = False
    while monotonic() < deadline:
        for channel in watch.channels:
            while (message := channel.comm.Improbe(status=(status := MPI.Status()))) is not None:
                message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])
        _unfinished[:] = [each for each in _unfinished if not each.Test()]
        if is_last_round:
            return
        all_here = all(slot.cell_state != CellState.RUNNING for slot in watch.recorder.slots)
        is_last_round = all_here and not _unfinished
        sleep(NAP_S)


def _keep(request: MPI.Request) -> None:
    """Keep a send's buffer until the other rank takes the message."""
    _unfinished[:] = [each for each in (*_unfinished, request) if not each.Test()]


def _cancel(request: MPI.Request) -> None:
    """Cancel a receive that no message has matched."""
    if request != MPI.REQUEST_NULL:
        request.Cancel()
        request.Wait()
