"""Requests whose waits poll in Python: a wait that cannot end raises a HangError, and can be interrupted.

mpi4py's own `Wait` is one call of the MPI library, and only the end of the process can end it.
"""

# ruff: noqa: PLR0917 (every nanosecond counts)

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Literal

from mpi4py import MPI

from mpiwatch import waiting
from mpiwatch.flight_recorder.opcodes import NONBLOCKING_SENDS
from mpiwatch.rendezvous import ChannelComm
from mpiwatch.requests import under_way, unreceived
from mpiwatch.requests.polls import count_tests
from mpiwatch.requests.under_way import RawPrequest, RawRequest
from mpiwatch.requests.waits import made_by, set_default, wait_for
from mpiwatch.wait import POLLS, Watch


class LikeMpi4py(type):
    """Lets mpi4py's own requests, which other communicators make, count as instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        own = _REPLACED.get(cls)
        return isinstance(instance, own) if own else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        own = _REPLACED.get(cls)
        return issubclass(subclass, own) if own else super().__subclasscheck__(subclass)


_test, _testall = RawRequest.Test, RawRequest.Testall


class PolledRequest(RawRequest, metaclass=LikeMpi4py):
    """An `MPI.Request` with the same handle; `made` is the call that made it, None if unknown."""

    __slots__ = ("made",)
    made: tuple[str, ChannelComm, int, int, CodeType, int]  # a Made, as a tuple to save time

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        is_plain = type(self) is PolledRequest
        for _ in _polls:
            if _test(self, status) if is_plain else self.Test(status):  # these polls need not be counted
                return True
            _pause()
        wait_for(lambda: self.Test(status), [self])
        return True

    def wait(self, status: MPI.Status | None = None) -> Any:
        return _result_of(lambda: self.test(status), [self])

    @classmethod
    def Waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        # `statuses` is a list because mpi4py writes the statuses into it.
        for _ in _polls:
            if _testall(requests, statuses):
                return True
            _pause()
        wait_for(lambda: cls.Testall(requests, statuses), requests)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> Any:
        return _result_of(lambda: cls.testall(requests, statuses), requests)

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        found: list[int] = []

        def has_completed() -> bool:
            index, done = cls.Testany(requests, status)
            found[:] = [index]
            return done

        _poll(has_completed, requests, needs_all=False)
        return found[0]

    @classmethod
    def waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, Any]:
        found: list[Any] = []

        def has_completed() -> bool:
            found[:] = cls.testany(requests, status)
            return bool(found[1])

        _poll(has_completed, requests, needs_all=False)
        return found[0], found[2]

    @classmethod
    def Waitsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> list[int] | None:
        found: list[Any] = []

        def has_completed() -> bool:
            found[:] = [cls.Testsome(requests, statuses)]
            return found[0] is None or len(found[0]) > 0  # None: no request is active

        _poll(has_completed, requests, needs_all=False)
        return found[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        found: list[Any] = []

        def has_completed() -> bool:
            found[:] = cls.testsome(requests, statuses)
            return found[0] is None or len(found[0]) > 0

        _poll(has_completed, requests, needs_all=False)
        return found[0], found[1]


class PolledPrequest(PolledRequest, RawPrequest):
    """A persistent request; it counts as under way each time it is started."""

    __slots__ = ()

    def Start(self) -> None:
        super().Start()
        note(self)

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        RawPrequest.Startall(requests)
        for request in requests:
            note(request)


_REPLACED: dict[type, type] = {}


def like(replacement: type, own: type) -> None:
    """Let a class stand in for mpi4py's own one in messages, tracebacks, help and `isinstance`."""
    _REPLACED[replacement] = own
    replacement.__name__ = replacement.__qualname__ = own.__name__
    replacement.__module__ = own.__module__
    for name, method in vars(replacement).items():
        function = getattr(method, "__func__", method)
        if hasattr(own, name) and callable(function) and not function.__doc__:
            function.__doc__ = getattr(own, name).__doc__


count_tests(PolledRequest)
like(PolledRequest, RawRequest)
like(PolledPrequest, RawPrequest)

_polls, _pause = POLLS, waiting.yield_core


def replace_requests(
    watch: Watch | None,
    deadline_s: float,
    request: type[MPI.Request] = PolledRequest,
    prequest: type[MPI.Prequest] = PolledPrequest,
) -> None:
    """Replace `MPI.Request` and `MPI.Prequest` by polling classes, for code that calls `MPI.Request.Waitall`.

    `watch` and `deadline_s` (in seconds) are for requests that other communicators have made. `request`
    and `prequest`: the classes that take their place.
    """
    global _polls, _pause
    set_default(watch, deadline_s)
    if watch is not None:
        _polls, _pause = watch.polls, watch.pause
    MPI.Request, MPI.Prequest = request, prequest  # type: ignore[misc]


def polled(request: Any, operation: str, comm: ChannelComm, peer: int, tag: int, frame: FrameType) -> Any:
    """Return mpi4py's request as one that polls, and count it as under way; return others unchanged.

    `frame`: the frame of the caller, which made the request.
    """
    if type(request) is RawRequest:
        request = PolledRequest(request)
    elif type(request) is RawPrequest:
        request = PolledPrequest(request)
    if type(request) in _REPLACED:
        request.made = operation, comm, peer, tag, frame.f_code, frame.f_lasti
    if type(request) is not PolledPrequest:
        note(request, operation)
    return request


def note(request: Any, operation: str = "") -> None:
    """Count a request as under way."""
    made = made_by(request)
    operation = operation or (made.operation if made else "")
    if operation in NONBLOCKING_SENDS:
        under_way.sends.add(request)
        if made:
            unreceived.note(made)
    elif operation.startswith("Isendrecv"):
        under_way.sends.add(request)
        under_way.receives.add(request)
    elif made is None or made.is_message:
        under_way.receives.add(request)
        unreceived.balance[0] -= 1
    else:
        under_way.collectives.add(request)


def _result_of(test: Callable[[], tuple[bool, Any]], requests: Sequence[MPI.Request]) -> Any:
    found: list[Any] = []

    def has_completed() -> bool:
        done, result = test()
        found[:] = [result]
        return done

    _poll(has_completed, requests, depth=3)
    return found[0]


def _poll(
    is_done: Callable[[], bool], requests: Sequence[MPI.Request], needs_all: bool = True, depth: int = 2
) -> None:
    for _ in _polls:
        if is_done():
            return
        _pause()
    wait_for(is_done, requests, needs_all, depth + 1)
