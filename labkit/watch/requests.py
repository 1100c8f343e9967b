"""Non-blocking messages: which are under way while a rank waits in a blocking one, and which hangs left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from labkit.watch.rendezvous import ChannelComm

KEPT = 100


class UnderWay:
    """Requests that may not have completed. They hold their buffers, so only some are kept."""

    def __init__(self) -> None:
        self.requests: list[MPI.Request] = []
        self.lost_track = False  # for good: a message may be under way that nothing here knows

    def add(self, request: MPI.Request) -> None:
        """Keep a request until it has completed."""
        if len(self.requests) >= KEPT and self.any() and len(self.requests) >= KEPT:
            self.requests, self.lost_track = [], True
        self.requests.append(request)

    def any(self) -> bool:
        """Tell whether a message may be under way."""
        self.requests = [request for request in self.requests if request]  # false once it has completed
        return self.lost_track or bool(self.requests)


sends, receives = UnderWay(), UnderWay()  # of this process


class NotedRequests(ChannelComm):
    """Notes the requests of the caller's code; blocking messages and schedules complete their own."""

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        request = super().Isend(buf, dest, tag)
        sends.add(request)
        return request

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        request = super().Irecv(buf, source, tag)
        receives.add(request)
        return request

    def _schedule_messages(self) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
        own = type(self)
        return (
            super().Isend if own.Isend is NotedRequests.Isend else self.Isend,
            super().Irecv if own.Irecv is NotedRequests.Irecv else self.Irecv,
        )


def _noting(name: str, *kinds: UnderWay) -> Callable[..., Any]:
    def start(self: NotedRequests, *arguments: Any, **named: Any) -> Any:
        request = getattr(super(NotedRequests, self), name)(*arguments, **named)
        for kind in kinds:
            kind.add(request)
        return request

    start.__name__, start.__doc__ = name, getattr(MPI.Comm, name).__doc__
    return start


def _losing(name: str, kind: UnderWay) -> Callable[..., Any]:
    def start(self: NotedRequests, *arguments: Any, **named: Any) -> Any:
        kind.lost_track = True  # of a message in a buffer of MPI, or of one that another object receives
        return getattr(super(NotedRequests, self), name)(*arguments, **named)

    start.__name__, start.__doc__ = name, getattr(MPI.Comm, name).__doc__
    return start


_NOTED: dict[tuple[UnderWay, ...], str] = {
    (
        sends,
    ): "Ibsend Issend Irsend isend ibsend issend Send_init Bsend_init Ssend_init Rsend_init Psend_init",
    (receives,): "irecv Recv_init Precv_init",
    (sends, receives): "Isendrecv Isendrecv_replace",
}
for _kinds, _names in _NOTED.items():
    for _name in filter(lambda name: hasattr(MPI.Comm, name), _names.split()):  # what this mpi4py has
        setattr(NotedRequests, _name, _noting(_name, *_kinds))
for _kind, _names in (sends, "Bsend bsend"), (receives, "Mprobe mprobe Improbe improbe"):
    for _name in _names.split():
        setattr(NotedRequests, _name, _losing(_name, _kind))

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
        request.Wait()
