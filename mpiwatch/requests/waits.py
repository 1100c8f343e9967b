"""Wait for requests by polling until they have completed or a report says why they cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from mpi4py import MPI

from mpiwatch import waiting
from mpiwatch.flight_recorder.opcodes import NONBLOCKING_RECEIVES, NONBLOCKING_SENDS, OPERATIONS
from mpiwatch.flight_recorder.source import line_of
from mpiwatch.message_wait import MessageWait
from mpiwatch.rendezvous import Channel, ChannelComm
from mpiwatch.requests import under_way
from mpiwatch.wait import Watch


class Made(NamedTuple):
    """The call that made a request; `peer` is a rank of `comm`, negative for any or none."""

    operation: str
    comm: ChannelComm
    peer: int
    tag: int
    code: CodeType
    instruction: int

    @property
    def is_message(self) -> bool:
        """Return whether the call is a send or a receive rather than a collective."""
        return self.peer != NO_PEER

    @property
    def line(self) -> str:
        """Return the line of the call."""
        return line_of(self.code, self.instruction)


NO_PEER = -99  # the peer of a collective


def made_by(request: Any) -> Made | None:
    """Return the call that made a request, if it is known."""
    made = getattr(request, "made", None)
    return Made(*made) if made else None


_watch: Watch | None = None  # for requests whose origin is unknown
_deadline_s = 0.0


def set_default(watch: Watch | None, deadline_s: float) -> None:
    """Set how to wait for requests whose origin is unknown."""
    global _watch, _deadline_s
    _watch, _deadline_s = watch, deadline_s


def watch_of(requests: Sequence[MPI.Request]) -> tuple[Watch | None, float]:
    """Return what watches a wait for requests, and its deadline in seconds."""
    made = [each for each in map(made_by, requests) if each]
    channels = [each.comm._channel for each in made if isinstance(each.comm._channel, Channel)]
    return channels[0].watch if channels else _watch, max(
        (each.comm.deadline_s for each in made), default=_deadline_s
    )


def wait_for(
    is_done: Callable[[], bool], requests: Sequence[MPI.Request], needs_all: bool = True, depth: int = 2
) -> None:
    """Return when `is_done()`; raise HangError if the requests cannot complete.

    `needs_all`: whether the wait is for all of them, or for any. `depth`: frames between this one and the
    caller's. An error cancels the receives.
    """
    watch, deadline_s = watch_of(requests)
    if watch is None:
        while not is_done():
            waiting.yield_core()
        return
    try:
        watch.wait(is_done, RequestWait(watch, deadline_s, requests, sys._getframe(depth), needs_all))
    except BaseException:
        # Otherwise, these receives would take the messages of the next attempt.
        for request in requests:
            origin = made_by(request)
            operation = origin.operation if origin else ""
            if operation in NONBLOCKING_RECEIVES:
                under_way.cancel(request)
            elif request and operation in NONBLOCKING_SENDS:
                under_way.keep(request)
        raise


class RequestWait(MessageWait):
    """Waiting for requests: for all of them, or, if not `needs_all`, for one of them.

    The slot names the first one that has not completed.
    """

    def __init__(
        self,
        watch: Watch,
        deadline_s: float,
        requests: Sequence[MPI.Request],
        frame: FrameType,
        needs_all: bool,
    ) -> None:
        super().__init__(watch, [], deadline_s, OPERATIONS["Wait"], -1, -1, frame)
        self.requests, self.needs_all = requests, needs_all
        self.subject: MPI.Request | None = None

    def announce(self) -> None:
        pending = [request for request in self.requests if request and not request.Get_status()]
        self.subject = pending[0] if pending else None
        made = made_by(self.subject)
        self.is_circular = made is not None and made.is_message and not made.operation.startswith("Isendrecv")
        if made is None:
            self.operation, self.peer, self.tag, self.origin = OPERATIONS["Wait"], -1, -1, ""
            self.members = list(range(self.watch.recorder.size))
        else:
            channel = made.comm._channel
            self.members = channel.members if isinstance(channel, Channel) else []
            self.operation, self.origin = OPERATIONS[made.operation], made.line
            self.peer = self.members[made.peer] if 0 <= made.peer < len(self.members) else -1
            self.tag = made.tag
        self.waited_for = [self.subject] if self.subject is not None else []
        if not self.needs_all and len(pending) > 1:
            self.is_circular = False
        super().announce()

    def is_stuck(self) -> bool:
        if self.subject is None or not self.subject or self.subject.Get_status():
            self.announce()  # the first one has completed in the meantime
            return False
        return super().is_stuck()

    def cannot_complete(self, patience_s: float) -> bool:
        made = made_by(self.subject)
        if made is None or (not self.needs_all and len(self.requests) > 1):
            return False
        if not made.is_message:
            return any(self.watch.has_ended(member, patience_s) for member in self.members)
        return super().cannot_complete(patience_s)
