"""Requests that poll: their waits can be interrupted, and end with a report if they cannot complete.

`polled` turns a request of mpi4py's into one that polls. It knows the call that made it (`made`), is counted
as under way until it is complete, and hands itself over if the program drops it before (see `under_way`).
"""

# ruff: noqa: PLR0917 (every nanosecond counts)

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from types import FrameType
from typing import Any

from mpi4py import MPI

from mpiwatch import modes
from mpiwatch.library_calls import REPLACED, REPLACEMENTS, LikeMpi4py, like
from mpiwatch.message_waits import RequestWait, polls, wait_for
from mpiwatch.under_way import RawPrequest, RawRequest, under_way

on_start: Callable[[Any], object] | None = None  # for a library that counts the starts of persistent requests


class PolledRequest(RawRequest, metaclass=LikeMpi4py):
    """An `MPI.Request` with the same handle; `made` is the call that made it, None if unknown.

    Its waits poll; its tests are counted: see WAITS.
    """

    __slots__ = ("made",)
    made: tuple[Any, ...]  # the items of a Made, which takes longer to make

    # For `__del__`, which may run when Python ends: the names of this module are gone then.
    _is_active = RawRequest.__bool__
    _drop = under_way.drop

    def __del__(self) -> None:
        if self._is_active():
            self._drop(self)

    def end(self, why: str) -> None:
        """Let each further use raise EndedError; its cell has failed."""
        self.made = why  # type: ignore[assignment]
        self.__class__ = EndedRequest


class PolledPrequest(PolledRequest, RawPrequest):
    """A persistent request; it counts as under way each time it is started."""

    __slots__ = ()

    def Start(self) -> None:
        super().Start()
        track_started(self)

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        RawPrequest.Startall(requests)
        for request in requests:
            track_started(request)


def track_started(request: Any) -> None:
    """Count a persistent request as under way."""
    made = getattr(request, "made", None)
    if made is not None:
        under_way.add(request, made)
    if on_start is not None:
        on_start(request)


class EndedError(RuntimeError):
    """A use of what was made before a cell failed. The message names the cell to run again."""


class EndedRequest(PolledRequest):
    """A request of before a failed cell; `made` says why it cannot be used."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> Any:
        raise EndedError(self.made)

    Wait = wait = Test = test = Get_status = get_status = Start = _refuse  # type: ignore[assignment]

    def Free(self) -> None:
        """Do nothing: the request has ended."""

    Cancel = cancel = free = Free


# A wait -> whether a result of its test says that it is over, and what the wait returns of the result. For
# Testsome, None says that no request is active.
Way = tuple[Callable[[Any], bool], Callable[[Any], Any]]
OF_ONE = "Wait", "wait"  # methods of a request; the others are of a class
WAITS: dict[str, Way] = {
    "Wait": (bool, bool),
    "wait": (itemgetter(0), itemgetter(1)),
    "Waitall": (bool, bool),
    "waitall": (itemgetter(0), itemgetter(1)),
    "Waitany": (itemgetter(1), itemgetter(0)),
    "waitany": (itemgetter(1), itemgetter(0, 2)),
    "Waitsome": (lambda done: done is None or len(done) > 0, lambda done: done),
    "waitsome": (lambda result: result[0] is None or len(result[0]) > 0, lambda result: result),
}


def poll_in_python(requests: type[MPI.Request], mpi4py_class: type[MPI.Request]) -> None:
    """Let requests, in place of those of `mpi4py_class`, wait by polling, and count their tests."""
    for name, way in WAITS.items():
        test_name = name.replace("Wait", "Test").replace("wait", "test")
        methods = _polling(name, getattr(requests, test_name), *way)
        for method_name, method in zip((name, test_name), methods, strict=True):
            method.__name__ = method_name
            setattr(requests, method_name, method if name in OF_ONE else classmethod(method))
    like(requests, mpi4py_class)


def _polling(
    name: str, test: Callable[..., Any], is_over: Callable[[Any], bool], value: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Return a wait that calls `test`, and the same test with its calls counted."""
    is_of_one = name in OF_ONE
    needs_all = is_of_one or name.endswith("all")

    def finish(ask: Callable[[], Any], requests: Sequence[MPI.Request]) -> Any:
        result: Any = None

        def is_done() -> bool:
            nonlocal result
            result = ask()
            return is_over(result)

        wait_for(is_done, requests, needs_all=needs_all)
        return result

    def wait_for_one(self: Any, status: MPI.Status | None = None) -> Any:
        result = test(self, status)
        return value(result if is_over(result) else finish(partial(test, self, status), [self]))

    def wait_for_several(cls: Any, requests: Any, *rest: Any, **named: Any) -> Any:
        for request in requests:
            if type(request) is EndedRequest:
                request.Wait()  # raises EndedError
        result = test(requests, *rest, **named)
        return value(result if is_over(result) else finish(partial(test, requests, *rest, **named), requests))

    def counted(owner: Any, *arguments: Any, **named: Any) -> Any:
        result = test(owner, *arguments, **named) if is_of_one else test(*arguments, **named)
        if is_over(result):
            polls.successes += 1
            return result
        polls.failed += 1
        if polls.is_due:
            several: Any = arguments[0] if arguments else named.get("requests")
            tested = [owner] if is_of_one else several
            polls.look(lambda watch: RequestWait(watch, tested, needs_all=needs_all))
        return result

    return wait_for_one if is_of_one else wait_for_several, counted


poll_in_python(PolledRequest, RawRequest)
like(PolledPrequest, RawPrequest)


def replace_requests(
    request: type[MPI.Request] = PolledRequest, prequest: type[MPI.Prequest] = PolledPrequest
) -> None:
    """Let all requests poll, also those of communicators that are not watched, of windows and files."""
    REPLACEMENTS[RawRequest], REPLACEMENTS[RawPrequest] = request, prequest
    MPI.Request, MPI.Prequest = request, prequest  # type: ignore[misc]


def polled(request: Any, operation: str, comm: Any, peer: int, tag: int, frame: FrameType) -> Any:
    """Return mpi4py's request as one that polls, and count it as under way; return others unchanged.

    `frame`: the frame of the caller, which made the request.
    """
    if type(request) is RawRequest:
        request = PolledRequest(request)
    elif type(request) is RawPrequest:
        request = PolledPrequest(request)
    made = operation, comm, peer, tag, frame.f_code, frame.f_lasti
    if type(request) in REPLACED:
        request.made = made
    if not isinstance(request, RawPrequest):
        under_way.add(request, made)
    if modes.registered is not None:
        modes.registered.note_request(request)
    return request
