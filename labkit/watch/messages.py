"""Blocking messages that can be interrupted, and that end with a report when nobody takes or sends them."""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from labkit.watch.flight_recorder.layout import WaitingIn
from labkit.watch.flight_recorder.opcodes import OPERATIONS
from labkit.watch.rendezvous import NoChannel, Watched
from labkit.watch.wait import Waiting, Watch


class Message(Waiting):
    """Waiting for a message to come, or to be taken; `peer` is a rank of the world, or -1 for any."""

    def __init__(
        self,
        watch: Watch,
        members: list[int],
        deadline_s: float,
        op: int,
        peer: int,
        tag: int,
        frame: FrameType,
    ) -> None:
        super().__init__(watch, members, deadline_s)
        self.op, self.peer, self.tag, self.frame = op, peer, tag, frame

    def begin(self) -> None:
        slot = self.watch.slot
        self.watch.post_where(self.frame)
        slot.message_operation, slot.message_peer, slot.message_tag = self.op, self.peer, self.tag
        slot.waiting_in = WaitingIn.MESSAGE

    def hopeless(self, patience: float) -> bool:
        peers = [self.peer] if self.peer >= 0 else [rank for rank in self.members if rank != self.watch.rank]
        return bool(peers) and all(self.watch.ended(peer, patience) for peer in peers)


class WatchedMessages(Watched):
    """Send, receive and their kin as their non-blocking twins, asked until they are done."""

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
        coming = super().Irecv(recvbuf, source, recvtag)
        try:
            going = super().Isend(sendbuf, dest, sendtag)
        except BaseException:
            _withdraw(coming)
            raise
        self._both("Sendrecv", going, dest, sendtag, coming, source, recvtag, status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        array, *rest = buf if isinstance(buf, (list, tuple)) else [buf]
        if not isinstance(array, np.ndarray):
            super().Sendrecv_replace(buf, dest, sendtag, source, recvtag, status)
            return
        going = super().Isend([array.copy(), *rest] if rest else array.copy(), dest, sendtag)
        coming = super().Irecv(buf, source, recvtag)
        self._both("Sendrecv_replace", going, dest, sendtag, coming, source, recvtag, status)

    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        take_snapshot = super().Iprobe
        self._until("Probe", lambda: take_snapshot(source, tag, status), source, tag)
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
        going = super().isend(sendobj, dest, sendtag)
        try:
            received = self._matched("sendrecv", source, recvtag, status).recv(status)
        except BaseException:
            _left.append(going)
            raise
        self._complete("send", going, dest, sendtag)
        return received

    def probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        take_snapshot = super().iprobe
        self._until("probe", lambda: take_snapshot(source, tag, status), source, tag)
        return True

    def mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        return self._matched("mprobe", source, tag, status)

    def _matched(self, op: str, source: int, tag: int, status: MPI.Status | None) -> MPI.Message:
        found: list[MPI.Message] = []
        take_snapshot = super().Improbe if op == "Mprobe" else super().improbe

        def over() -> bool:
            message = take_snapshot(source, tag, status)
            if message is not None:
                found.append(message)
            return bool(found)

        self._until(op, over, source, tag)
        return found[0]

    def _both(
        self,
        op: str,
        going: MPI.Request,
        dest: int,
        sendtag: int,
        coming: MPI.Request,
        source: int,
        recvtag: int,
        status: MPI.Status | None,
    ) -> None:
        try:
            self._complete(op, coming, source, recvtag, status, receives=True)
        except BaseException:
            _left.append(going)
            raise
        self._complete("Send", going, dest, sendtag)

    def _complete(
        self,
        op: str,
        request: MPI.Request,
        peer: int,
        tag: int,
        status: MPI.Status | None = None,
        receives: bool = False,
    ) -> None:
        try:
            self._until(op, lambda: request.Test(status), peer, tag)
        except BaseException:
            if receives:
                _withdraw(request)
            else:
                _left.append(request)
            raise

    def _until(self, op: str, over: Callable[[], bool], peer: int, tag: int) -> None:
        if over():
            return
        channel = self._channel
        if isinstance(channel, NoChannel):
            while not over():
                pass
            return
        world = channel.members[peer] if 0 <= peer < len(channel.members) else -1
        frame = sys._getframe(2)
        message = Message(channel.watch, channel.members, self.deadline_s, OPERATIONS[op], world, tag, frame)
        channel.watch.wait(over, message)


# Sends that nobody has taken: their buffers must stay.
_left: list[MPI.Request] = []


def _withdraw(request: MPI.Request) -> None:
    """Take back a receive that is still waiting."""
    if request != MPI.REQUEST_NULL:
        request.Cancel()
        request.Wait()
