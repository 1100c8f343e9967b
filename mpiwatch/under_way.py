"""Requests and messages of this process that are under way, or that a hang or a cell has left behind.

Each rank counts the sends of its cell minus its receives, and notes the lines of its last sends. If the
counts of all ranks do not add up to 0 when the cell has ended well, the notebook asks which messages have
arrived but were not received.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Collection
from types import CodeType
from typing import Any

from mpi4py import MPI
from mpi4py.MPI import Prequest as RawPrequest  # mpi4py's own, also after `replace_requests`
from mpi4py.MPI import Request as RawRequest

__all__ = [
    "RawPrequest",
    "RawRequest",
    "UnderWay",
    "cancel",
    "cancel_lost",
    "collectives",
    "has_unfinished",
    "keep",
    "leave_behind",
    "receives",
    "sends",
]

KEPT = 100

_ALONE = [object()]  # refers to an object that nothing else refers to
SENDS_NOTED = 200


class UnderWay:
    """Requests that may not have completed. They hold their buffers, so only some are kept."""

    def __init__(self) -> None:
        self.requests: list[MPI.Request] = []
        self.lost_track = False  # permanent: a message that is not tracked may be under way

    def add(self, request: MPI.Request) -> None:
        """Keep a request until it has completed."""
        self.requests.append(request)
        if len(self.requests) > KEPT:
            self.tidy()

    def tidy(self) -> None:
        """Drop requests that have completed, and all if too many are left."""
        if self.any() and len(self.requests) > KEPT:
            self.requests, self.lost_track = [], True

    def any(self, besides: Collection[MPI.Request] = ()) -> bool:
        """Tell whether a message may be under way that is not one of `besides`."""
        # A request is false once its caller has waited for it. MPI is not asked: another object with the same
        # handle may have completed it, and MPI may crash on a handle that is no longer valid. A persistent
        # request keeps its handle; it is added each time it starts.
        self.requests = [
            request
            for request in self.requests
            if request and not (isinstance(request, RawPrequest) and request.Get_status())
        ]
        others = (
            request for request in self.requests if not any(request is excluded for excluded in besides)
        )
        return self.lost_track or any(others)


sends, receives, collectives = UnderWay(), UnderWay(), UnderWay()  # of this process

# Sends of calls that have ended in a hang report: their buffers must stay until a rank takes the messages.
unfinished: list[MPI.Request] = []

# Requests of cells that have failed. The session may still refer to them.
_left_sends: list[MPI.Request] = []
_left_receives: list[MPI.Request] = []
_left_collectives: list[MPI.Request] = []  # MPI cannot cancel them


def has_unfinished() -> bool:
    """Tell whether a send of an earlier hang is under way."""
    unfinished[:] = [each for each in unfinished if not each.Test()]
    return bool(unfinished)


def keep(request: MPI.Request) -> None:
    """Keep a send's buffer until the other rank takes the message."""
    unfinished.append(request)
    has_unfinished()


def cancel(request: MPI.Request) -> None:
    """Cancel a receive that no message has matched."""
    if request != MPI.REQUEST_NULL:
        request.Cancel()
        RawRequest.Wait(request)


def leave_behind() -> None:
    """Keep the requests of a failed cell, and their buffers, but count none of them as under way any more."""
    for kind, left in (
        (sends, _left_sends),
        (receives, _left_receives),
        (collectives, _left_collectives),
    ):
        left += [each for each in kind.requests if each and not any(each is other for other in left)]
        kind.requests, kind.lost_track = [], False
    # The request of an Isendrecv is in two of the lists.
    _left_receives[:] = [each for each in _left_receives if not any(each is other for other in _left_sends)]


def cancel_lost() -> None:
    """Cancel the receives left by failed cells to which nothing refers any more: their buffers can go.

    Sends stay until they complete, and so do receives for which the session may still wait.
    """
    for left in _left_sends, _left_receives, _left_collectives:
        for i in reversed(range(len(left))):
            if not left[i]:
                del left[i]  # its caller has waited for it
            elif sys.getrefcount(left[i]) <= sys.getrefcount(_ALONE[0]) and _is_only_handle(left[i]):
                if left is _left_receives:
                    with contextlib.suppress(MPI.Exception):
                        cancel(left[i])
                    del left[i]
                else:
                    keep(left.pop(i))


def _is_only_handle(request: Any) -> bool:
    """Return whether no other object has this handle, which that object may have completed."""
    made = getattr(request, "made", None)  # None in strict mode, too, where calls have several handles
    return made is not None and not made[1].copies_requests and getattr(request, "call", None) is None


# The operation, communicator, peer, tag, code and instruction of a call, as a request's `made` has them.
Call = tuple[str, Any, int, int, CodeType, int]

balance = [0]  # sends minus receives of the cell
noted: deque[Call] = deque(maxlen=SENDS_NOTED)


def note(call: Call) -> None:
    """Note a send."""
    balance[0] += 1
    noted.append(call)
