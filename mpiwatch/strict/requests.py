"""`MPI.Request` and `MPI.Prequest` in strict mode: they drive calls whose headers are matched in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mpi4py import MPI

from mpiwatch.requests import PolledRequest, count_tests, like, note, wait_for
from mpiwatch.strict.findings import Category, Finding, add
from mpiwatch.strict.operations import Operation, Starter, go_on
from mpiwatch.under_way import RawPrequest, RawRequest


class StrictRequest(PolledRequest):
    """A request that drives an Operation; without one, it is a request of the MPI library."""

    __slots__ = ("call",)
    call: Operation | None

    def __new__(cls, request: MPI.Request | None = None, *_: Any) -> Any:
        """Take over the handle of a request, if there is one."""
        return RawRequest.__new__(cls, *(() if request is None else (request,)))

    def __init__(self, request: MPI.Request | None = None, call: Operation | None = None) -> None:
        self.call = call

    def __bool__(self) -> bool:
        return self.call is not None or RawRequest.__bool__(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RawRequest) or bool(self) != bool(other):
            return False
        return self is other or not self or (RawRequest.__bool__(self) and RawRequest.__eq__(self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # like mpi4py's

    def _end(self, status: MPI.Status | None) -> Any:
        call, self.call = self.call, None
        if call is not None:
            return call.finish(status)
        RawRequest.Test(self, status)
        return None

    # A program may call these methods, as in `MPI.Request.Free(request)`, with a request of mpi4py's own.

    def Test(self, status: MPI.Status | None = None) -> bool:
        if (call := _call_of(self)) is None:
            return bool(RawRequest.Test(self, status))
        if not call.advance():
            return False
        self._end(status)
        return True

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any | None]:
        if (call := _call_of(self)) is None:
            return RawRequest.test(self, status)
        return (True, self._end(status)) if call.advance() else (False, None)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        if (call := _call_of(self)) is None:
            return bool(RawRequest.Get_status(self, status))
        call.is_known_complete = call.advance()
        return call.is_known_complete

    get_status = Get_status

    def Cancel(self) -> None:
        if (call := _call_of(self)) is None:
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
                add(Finding(Category.REQUEST_LIFECYCLE, text, call.place, MPI.COMM_WORLD.rank))
            if call.advance():
                call.finish(None)
            else:
                go_on(call)
        if RawRequest.__bool__(self):
            RawRequest.Free(self)

    free = Free

    @classmethod
    def Waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        if not cls.Testall(requests, statuses):
            wait_for(lambda: cls.Testall(requests, statuses), requests)
        return True

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> bool:
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        if not all([not request or request.Get_status() for request in requests]):
            return False, None
        _fill(statuses, len(requests))
        return True, [
            request.test(statuses[i] if statuses else None)[1] for i, request in enumerate(requests)
        ]

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        index, done, _ = cls.testany(requests, status)
        return index, done

    @classmethod
    def testany(
        cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None
    ) -> tuple[int, bool, Any | None]:
        if not any(requests):
            return MPI.UNDEFINED, True, None
        for index, request in enumerate(requests):
            if request and request.Get_status():
                return index, True, request.test(status)[1]
        return MPI.UNDEFINED, False, None

    @classmethod
    def Testsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> list[int] | None:
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        if not any(requests):
            return None, None
        done = [index for index, request in enumerate(requests) if request and request.Get_status()]
        _fill(statuses, len(done))
        return done, [
            requests[index].test(statuses[i] if statuses else None)[1] for i, index in enumerate(done)
        ]


def _call_of(request: Any) -> Operation | None:
    call: Operation | None = getattr(request, "call", None)
    return call


def _fill(statuses: list[MPI.Status] | None, size: int) -> None:
    if statuses is not None:
        statuses += [MPI.Status() for _ in range(size - len(statuses))]


class StrictPrequest(StrictRequest, RawPrequest):
    """A persistent request: each start makes a new call."""

    __slots__ = ("is_freed", "operation", "place", "start", "started")

    def __init__(
        self,
        request: MPI.Request | None = None,
        start: Starter | None = None,
        operation: str = "",
        place: str = "",
    ) -> None:
        super().__init__(request)
        self.start, self.operation, self.place = start, operation, place
        self.started, self.is_freed = 0, False

    def __bool__(self) -> bool:
        return not self.is_freed

    def Test(self, status: MPI.Status | None = None) -> bool:
        if self.call is None:
            return True  # it is inactive
        return super().Test(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any | None]:
        return super().test(status) if self.call is not None else (True, None)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        return self.call is None or self.call.advance()

    def Start(self) -> None:
        if self.is_freed:
            raise MPI.Exception(MPI.ERR_REQUEST)
        if self.call is not None:
            add(
                Finding(
                    Category.REQUEST_LIFECYCLE,
                    f"the request of {self.operation} was started again before it was complete",
                    self.place,
                    MPI.COMM_WORLD.rank,
                )
            )
            raise MPI.Exception(MPI.ERR_REQUEST)
        assert self.start is not None
        self.call = self.start()
        self.started += 1
        note(self)

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        for request in requests:
            request.Start()

    def Free(self) -> None:
        super().Free()
        self.is_freed = True

    free = Free


count_tests(StrictRequest)
like(StrictRequest, RawRequest)
like(StrictPrequest, RawPrequest)
