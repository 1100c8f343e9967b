"""Non-blocking calls of the caller: their requests poll, know their line, and are tracked as under way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from mpiwatch.flight_recorder.opcodes import (
    NONBLOCKING_COLLECTIVES,
    NONBLOCKING_RECEIVES,
    NONBLOCKING_SENDS,
    PROBES,
)
from mpiwatch.rendezvous import Channel, ChannelComm
from mpiwatch.requests import under_way
from mpiwatch.requests.polled import PolledRequest, polled
from mpiwatch.requests.polls import counting_probe
from mpiwatch.requests.under_way import KEPT, RawRequest, receives, sends
from mpiwatch.requests.unreceived import balance, note
from mpiwatch.requests.waits import NO_PEER
from mpiwatch.signature import arguments_of, check_buffers, check_message
from mpiwatch.wrapper import like_mpi4py

_getframe = sys._getframe


class NotedRequests(ChannelComm):
    """Tracks the requests of the caller; blocking messages and schedules complete their own requests."""

    _again: MPI.Intracomm | None = None  # for non-blocking collectives after a hang, see `_nonblocking`
    _again_epoch = 0
    _next_isend, _next_irecv = MPI.Comm.Isend, MPI.Comm.Irecv  # like `super()`, in half the time

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        inner = cls.__mro__[cls.__mro__.index(NotedRequests) + 1 :]
        cls._next_isend, cls._next_irecv = (
            next(vars(base)[name] for base in inner if name in vars(base)) for name in ("Isend", "Irecv")
        )

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Isend", buf, dest)
        request = self._next_isend(buf, dest, tag)
        if type(request) is RawRequest:
            request = PolledRequest(request)
            frame = _getframe(1)
            request.made = made = "Isend", self, dest, tag, frame.f_code, frame.f_lasti
            note(made)
        kept = sends.requests
        kept.append(request)
        if len(kept) > KEPT:
            sends.tidy()
        return request

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Irecv", buf, source)
        request = self._next_irecv(buf, source, tag)
        if type(request) is RawRequest:
            request = PolledRequest(request)
            frame = _getframe(1)
            request.made = "Irecv", self, source, tag, frame.f_code, frame.f_lasti
            balance[0] -= 1
        kept = receives.requests
        kept.append(request)
        if len(kept) > KEPT:
            receives.tidy()
        return request

    def _renewed(self) -> None:
        super()._renewed()
        self._again = None

    def _schedule_messages(self) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
        own = type(self)
        return (
            super().Isend if own.Isend is NotedRequests.Isend else self.Isend,
            super().Irecv if own.Irecv is NotedRequests.Irecv else self.Irecv,
        )

    def _nonblocking(self, name: str) -> MPI.Intracomm | None:
        """Return the duplicate to use for non-blocking collectives; None before the first hang.

        A hang leaves non-blocking collectives under way. No call can cancel them, and the MPI library would
        match them with later ones. So the first one after a hang waits until all ranks make it, and
        duplicates the communicator again.
        """
        channel = self._channel
        if isinstance(channel, Channel) and max(channel.epoch_made, self._again_epoch) != channel.watch.epoch:
            self._join(name, depth=4)
            group = MPI.Intracomm.Get_group(self)
            # Create_group uses messages; Open MPI's Dup uses non-blocking collectives itself.
            self._again = MPI.Intracomm.Create_group(self, group, channel.watch.epoch % 1000)
            self._again_epoch = channel.watch.epoch
            group.Free()
        return self._again


def _noting(name: str) -> Callable[..., Any]:
    def start(self: NotedRequests, *arguments: Any, **named: Any) -> Any:
        peer, tag = _peer_and_tag(self, name, arguments, named)
        request = getattr(super(NotedRequests, self), name)(*arguments, **named)
        return polled(request, name, self, peer, tag, sys._getframe(1))

    return like_mpi4py(start, name)


def _peer_and_tag(
    comm: NotedRequests, name: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[int, int]:
    """Check the buffers; return the peer and the tag, for a send and receive those of the receive."""
    names: tuple[str, ...]
    if name in NONBLOCKING_SENDS or name == "Bsend":
        names, defaults = ("buf", "dest", "tag"), (-1, 0)
    elif name in NONBLOCKING_RECEIVES:
        names, defaults = ("buf", "source", "tag"), (-1, -1)
    elif name == "Isendrecv":
        names, defaults = ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag"), (-1, -1)
    else:
        names, defaults = ("buf", "dest", "sendtag", "source", "recvtag"), (-1, -1)
    if name in ("Psend_init", "Precv_init"):
        names = ("buf", "partitions", *names[1:])
    given = dict(zip(names, arguments, strict=False)) | named
    peers = [given.get(key, -1) for key in names if key in ("dest", "source")]
    if name[0].isupper():
        buffers = [given.get(key) for key in names if key.endswith("buf")]
        for buffer, peer in zip(buffers * len(peers), peers, strict=False):
            check_message(comm, name, buffer, peer, given.get("partitions", 1))
    return given.get(names[-2], defaults[0]), given.get(names[-1], defaults[1])


def _collective(name: str) -> Callable[..., Any]:
    def start(self: NotedRequests, *arguments: Any, **named: Any) -> Any:
        given = arguments_of(name, arguments, named)
        buffers = [given[key] for key in ("buf", "sendbuf", "recvbuf") if key in given]
        check_buffers(self, name, buffers, given.get("root", 0))
        again = self._nonblocking(name)
        if again is None:
            request = getattr(super(NotedRequests, self), name)(*arguments, **named)
        else:
            request = getattr(again, name)(*arguments, **named)
        return polled(request, name, self, NO_PEER, -1, sys._getframe(1))

    return like_mpi4py(start, name)


def _inner(name: str) -> Callable[..., Any]:
    return lambda self, *call: getattr(super(NotedRequests, self), name)(*call)


def _losing(name: str, kind: under_way.UnderWay) -> Callable[..., Any]:
    def start(self: NotedRequests, *arguments: Any, **named: Any) -> Any:
        if name == "Bsend":
            _peer_and_tag(self, name, arguments, named)
        kind.lost_track = True  # the message is in a buffer of MPI, or another object receives it
        return getattr(super(NotedRequests, self), name)(*arguments, **named)

    return like_mpi4py(start, name)


for _name in (*NONBLOCKING_SENDS, *NONBLOCKING_RECEIVES, "Isendrecv", "Isendrecv_replace"):
    if hasattr(MPI.Comm, _name) and _name not in vars(NotedRequests):  # not every mpi4py has all
        setattr(NotedRequests, _name, _noting(_name))
for _name in NONBLOCKING_COLLECTIVES:
    if hasattr(MPI.Intracomm, _name):
        setattr(NotedRequests, _name, _collective(_name))
for _kind, _names in (sends, "Bsend bsend"), (receives, "Mprobe mprobe Improbe improbe"):
    for _name in _names.split():
        setattr(NotedRequests, _name, _losing(_name, _kind))
for _name in PROBES:
    _probe = vars(NotedRequests).get(_name) or _inner(_name)
    setattr(NotedRequests, _name, counting_probe(_name, _probe))
