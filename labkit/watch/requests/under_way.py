"""Track requests that are under way while a rank waits, and those that hangs have left behind."""

from __future__ import annotations

from collections.abc import Collection

from mpi4py import MPI
from mpi4py.MPI import Prequest as RawPrequest  # mpi4py's own, also after `replace_requests`
from mpi4py.MPI import Request as RawRequest

__all__ = ["RawPrequest", "RawRequest", "UnderWay", "cancel", "has_unfinished", "keep", "receives", "sends"]

KEPT = 100


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


sends, receives = UnderWay(), UnderWay()  # of this process

# Sends of calls that have ended in a hang report: their buffers must stay until a rank takes the messages.
unfinished: list[MPI.Request] = []


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
