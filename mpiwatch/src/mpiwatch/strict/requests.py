"""Requests of strict mode, which drive calls of their own, and those that a program never completes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from mpiwatch import requests
from mpiwatch.library_calls import like
from mpiwatch.report import request_kind
from mpiwatch.requests import PolledRequest, RawPrequest, RawRequest
from mpiwatch.strict import freed
from mpiwatch.strict.findings import Category, add
from mpiwatch.strict.operations import EndedOperation, Operation, go_on


class StrictRequest(PolledRequest):
    """A request that drives an Operation; without one, it is a request of the MPI library."""

    __slots__ = ("call", "is_own")
    call: Operation | None
    is_own: bool  # whether the program's own call made it

    def __new__(cls, request: MPI.Request | None = None, *_: Any) -> Any:
        """Take over the handle of a request, if there is one."""
        return RawRequest.__new__(cls, *(() if request is None else (request,)))

    def __init__(self, request: MPI.Request | None = None, call: Operation | None = None) -> None:
        self.call = call
        self.is_own = False

    def __del__(self) -> None:
        if getattr(self, "is_own", False):  # not if making it has failed
            noted = _requests.pop(id(self), None)
            if noted is not None and self:  # neither reported at the end of its function nor complete
                _dropped.append(self.copy())
        super().__del__()

    def end(self, why: str) -> None:
        self.call = EndedOperation(why)

    def copy(self) -> StrictRequest:
        """Return another request for the same call, for when the program can no longer wait for it."""
        return StrictRequest(None, self.call)

    def take_over(self, other: StrictRequest) -> None:
        """Drive the call of another request from now on, for a class of requests that wraps requests."""
        self.call, other.call = other.call, None
        self.is_own, other.is_own = other.is_own, False
        if self.is_own:
            _requests.pop(id(other), None)
            _requests[id(self)] = weakref.ref(self)

    def __bool__(self) -> bool:
        return self.call is not None or RawRequest.__bool__(self)

    @property
    def is_active(self) -> bool:
        """Whether a wait can complete it."""
        return bool(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RawRequest) or bool(self) != bool(other):
            return False
        return self is other or not self or (RawRequest.__bool__(self) and RawRequest.__eq__(self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # like mpi4py's

    # A program may call these methods, as in `MPI.Request.Free(request)`, with a request of mpi4py's own.

    def Test(self, status: MPI.Status | None = None) -> bool:
        return _test(self, status)[0]

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any | None]:
        return _test(self, status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        call = _call_of(self)
        if call is None:
            return bool(RawRequest.Get_status(self, status))
        call.is_known_complete = call.advance()
        return call.is_known_complete

    get_status = Get_status

    def Cancel(self) -> None:
        call = _call_of(self)
        if call is None:
            RawRequest.Cancel(self)
        elif call.may_be_freed:  # a send: it goes on
            go_on(call)
            self.call = None
        else:
            call.cancel()

    cancel = Cancel

    def Free(self) -> None:
        call = _call_of(self)
        if call is not None:
            self.call = None
            # A message may have arrived by chance: what counts is whether the program can know.
            if not (call.may_be_freed or call.was_cancelled or call.is_known_complete):
                text = f"the request of {call.operation} was freed before it was waited for"
                add(Category.REQUEST_LIFECYCLE, text, call.place)
            if call.advance():
                call.finish(None)
            else:
                go_on(call)
        if RawRequest.__bool__(self):
            RawRequest.Free(self)

    free = Free

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> bool:
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        if not all([not request or request.Get_status() for request in requests]):
            return False, None
        return True, _ended(requests, statuses)

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        return cls.testany(requests, status)[:2]

    @classmethod
    def testany(
        cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None
    ) -> tuple[int, bool, Any | None]:
        active = _active(requests)
        for index in active:
            if requests[index].Get_status():
                return index, True, requests[index].test(status)[1]
        return MPI.UNDEFINED, not active, None

    @classmethod
    def Testsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> list[int] | None:
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        active = _active(requests)
        if not active:
            return None, None
        done = [index for index in active if requests[index].Get_status()]
        return done, _ended([requests[index] for index in done], statuses)


def _active(requests: Sequence[MPI.Request]) -> list[int]:
    """Return the indices of the requests that a wait can complete; a persistent request must be started."""
    return [index for index, request in enumerate(requests) if getattr(request, "is_active", request)]


def _test(request: Any, status: MPI.Status | None) -> tuple[bool, Any | None]:
    """Do a request's test, which is not counted."""
    call = _call_of(request)
    if call is None:
        is_complete, received = RawRequest.test(request, status)
        if is_complete and isinstance(request, StrictPrequest):
            request.is_started = False
        return is_complete, received
    if not call.advance():
        return False, None
    request.call = None
    call.finish(status)
    return True, call.received


def _call_of(request: Any) -> Operation | None:
    call: Operation | None = getattr(request, "call", None)
    return call


def _ended(requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None) -> list[Any]:
    """End complete requests; fill in their statuses, if they are wanted, and return their objects."""
    wanted: list[Any] = [None] * len(requests) if statuses is None else statuses
    wanted += [MPI.Status() for _ in range(len(requests) - len(wanted))]
    return [request.test(status)[1] for request, status in zip(requests, wanted, strict=False)]


class StrictPrequest(StrictRequest, RawPrequest):
    """A persistent request: each start makes a new call. Without one, its handle is MPI.REQUEST_NULL's."""

    __slots__ = ("is_freed", "is_started", "operation", "place", "start", "was_started")

    def __init__(
        self,
        request: MPI.Request | None = None,
        start: Callable[[], Operation] | None = None,
        operation: str = "",
        place: str = "",
    ) -> None:
        super().__init__(request)
        self.start, self.operation, self.place = start, operation, place
        self.was_started = self.is_freed = False
        self.is_started = False  # of a communicator that is not watched, and not complete

    def __bool__(self) -> bool:
        return not self.is_freed

    @property
    def is_active(self) -> bool:
        """Whether a wait can complete it: it has been started, and is not complete."""
        return self.call is not None or self.is_started

    def copy(self) -> StrictRequest:
        copy = StrictPrequest(None, self.start, self.operation, self.place)
        copy.call, copy.was_started, copy.is_freed = self.call, self.was_started, self.is_freed
        return copy

    def Start(self) -> None:
        if self.call is not None:
            text = f"the request of {self.operation} was started again before it was complete"
            add(Category.REQUEST_LIFECYCLE, text, self.place)
        if self.is_freed or self.call is not None:
            raise MPI.Exception(MPI.ERR_REQUEST)
        self.was_started = True
        if self.start is None:  # of a communicator that is not watched
            RawPrequest.Start(self)
            self.is_started = True
            return
        self.call = self.start()
        requests.track_started(self)

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        for request in requests:
            request.Start()

    def Free(self) -> None:
        super().Free()
        self.is_freed = True

    free = Free


requests.poll_in_python(StrictRequest, RawRequest)
like(StrictPrequest, RawPrequest)

_requests: dict[int, weakref.ref[StrictRequest]] = {}  # of the program's own calls, by their identities
_dropped: list[StrictRequest] = []  # those that the program can no longer wait for


def add_request(request: Any) -> None:
    """Note a request of the program."""
    if isinstance(request, StrictRequest) and freed.is_own_call():
        request.is_own = True
        _requests[id(request)] = weakref.ref(request)


def report_never_completed(only_dropped: bool) -> None:
    """Report each request never waited for; `only_dropped`: only if the program can no longer do it."""
    left = list(_dropped)
    _dropped.clear()
    if not only_dropped:
        held = (reference() for reference in list(_requests.values()))
        left += [request for request in held if request is not None]
        _requests.clear()
    for request in left:
        _report_never_completed(request)


def _report_never_completed(request: StrictRequest) -> None:
    if request.call is not None:
        if not request.call.was_cancelled and request.call.error is None:
            text = f"the request of {request.call.what} was never waited for"
            kind = request_kind(request.call.operation)
            add(Category.REQUEST_LIFECYCLE, text, request.call.place, kind=kind)
            go_on(request.call)  # MPI may still use its buffer
    elif isinstance(request, StrictPrequest) and not request.is_freed:
        # It may live as long as the program.
        if request.was_started:
            category, text = Category.RESOURCE_LEAK, f"the request of {request.operation} was never freed"
        else:
            category = Category.REQUEST_LIFECYCLE
            text = f"the request of {request.operation} was never started"
        add(category, text, request.place, is_remark=True)
