"""Requests whose waits poll in Python: a wait that cannot end raises a HangError, and can be interrupted.

mpi4py's own `Wait` is one call of the MPI library, and only the end of the process can end it. A rank that
polls in a loop of its own, and does nothing else, waits for a message but looks busy: its polls are counted.
"""

# ruff: noqa: PLR0917 (every nanosecond counts)

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from time import process_time
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

from mpi4py import MPI

from mpiwatch import under_way, waiting
from mpiwatch.collectives import Channel, ChannelComm
from mpiwatch.opcodes import NONBLOCKING_RECEIVES, NONBLOCKING_SENDS, OPERATIONS
from mpiwatch.recorder import CellState
from mpiwatch.source import line_of
from mpiwatch.under_way import RawPrequest, RawRequest
from mpiwatch.waiting import POLLS, MessageWait, Watch
from mpiwatch.wrapper import like_mpi4py

NO_PEER = -99  # the peer of a collective
CERTAIN_S = 1.0  # of nothing but polls, before the rank counts as waiting
GAP_S = 1.0  # after a longer gap between two samples, the time between them is unknown
# A rank that computes or sleeps between its polls makes fewer, or spends more time on each.
LEAST_PER_S, LEAST_PER_SAMPLE, MOST_CPU_S = 2_000, 100, 20e-6
_FLAGS = {"testall": 0, "Testany": 1, "testany": 1, "testsome": 0}  # where results have them; else they are


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


class ProbeWait(MessageWait):
    """Polling for a message in a loop of the caller's, which may end without one."""

    def announce(self) -> None:
        super().announce()
        self.watch.slot.message_number = 0  # no part of a circle

    def cannot_complete(self, patience_s: float) -> bool:
        return super().cannot_complete(self.deadline_s)


class TestingWait(ProbeWait, RequestWait):
    """Testing requests in such a loop."""


class Polls:
    """The polls of this process. The watchdog samples them; the polling thread looks whether it may go on."""

    def __init__(self) -> None:
        self.failed = self.successes = 0
        self.is_due = False  # whether the next poll without success has to call `look`
        self.wait: MessageWait | None = None
        self.since_s, self.failed_before = 0.0, 0  # when nothing but polls began
        self.sampled: tuple[float, float, int] = (
            0.0,
            0.0,
            0,
        )  # the time, CPU time and `failed` of the last sample
        self.activity: tuple[Any, ...] = ()  # differs if the rank has made another call

    def sample(self, watch: Watch, now: float) -> None:
        """Find out whether this rank has only polled since the last sample. Called by the watchdog."""
        (then, cpu_then, failed_then), activity = self.sampled, self.activity
        self.sampled = now, process_time(), self.failed
        last = under_way.noted[-1] if under_way.noted else None
        self.activity = id(last), watch.calls, under_way.balance[0], self.successes, watch.epoch, last
        made, cpu_s = self.failed - failed_then, self.sampled[1] - cpu_then
        only_polls = (
            made >= LEAST_PER_SAMPLE
            and cpu_s < MOST_CPU_S * made
            and now - then < GAP_S
            and self.activity[:-1] == activity[:-1]
            and self.failed - self.failed_before > LEAST_PER_S * (now - self.since_s)
            and watch.slot.cell_state == CellState.RUNNING
            and not watch.waiting
            and not watch.is_threaded()
            and not math.isinf(watch.patience)  # a program may poll for as long as it likes
        )
        if not only_polls:
            self.since_s, self.failed_before, self.is_due = now, self.failed, False
            if self.wait is not None:
                watch.withdraw(self.wait)
                self.wait = None
        elif now - self.since_s > CERTAIN_S:
            self.is_due = True

    def look(self, watch: Watch | None, make: Callable[[Watch], MessageWait]) -> None:
        """Note in the slot that this rank waits; raise HangError if that is of no use any more."""
        self.is_due = False
        if watch is None or threading.current_thread() is not threading.main_thread():
            return
        if self.wait is None:
            self.wait = make(watch)
            self.wait.since_s = self.since_s
        wait, self.wait.failed_polls = self.wait, self.failed - self.failed_before
        watch.slot.message_polls = wait.failed_polls
        try:
            watch.look(wait, self.sampled[0] - self.since_s)
        except BaseException:
            self.wait = None
            raise


polls = Polls()


def counting_probe(name: str, probe: Callable[..., Any]) -> Callable[..., Any]:
    """Return a probe that counts its calls without success."""

    def counted(
        self: ChannelComm,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        found = probe(self, source, tag, status)
        if found:
            polls.successes += 1
            return found
        polls.failed += 1
        if polls.is_due and isinstance(channel := self._channel, Channel):
            peer = channel.members[source] if 0 <= source < len(channel.members) else -1
            call, frame = OPERATIONS[name], sys._getframe(1)
            polls.look(
                channel.watch,
                lambda watch: ProbeWait(watch, channel.members, self.deadline_s, call, peer, tag, frame),
            )
        return found

    return like_mpi4py(counted, name)


def count_tests(requests: type[MPI.Request]) -> None:
    """Let a class of requests count its tests without success."""
    for name in "Test", "test":
        setattr(requests, name, like_mpi4py(_counting_test(getattr(requests, name)), name, MPI.Request))
    for name in "Testall", "testall", "Testany", "testany", "Testsome", "testsome":
        counted = _counting_tests(getattr(requests, name), _FLAGS.get(name))
        setattr(requests, name, classmethod(like_mpi4py(counted, name, MPI.Request)))


def _counting_test(test: Callable[..., Any]) -> Callable[..., Any]:
    def counted(self: MPI.Request, status: MPI.Status | None = None) -> Any:
        result = test(self, status)
        if result is True or (result and result[0]):
            polls.successes += 1
        else:
            polls.failed += 1
            if polls.is_due:
                _look([self], sys._getframe(1), needs_all=True)
        return result

    return counted


def _counting_tests(test: Callable[..., Any], index: int | None) -> Callable[..., Any]:
    def counted(_: Any, requests: Sequence[MPI.Request], *rest: Any, **named: Any) -> Any:
        result = test(requests, *rest, **named)
        flag = result if index is None else result[index]
        if flag or flag is None:  # None: no request is active
            polls.successes += 1
        else:
            polls.failed += 1
            if polls.is_due:
                _look(requests, sys._getframe(1), needs_all=index != 1)
        return result

    return counted


def _look(requests: Sequence[MPI.Request], frame: FrameType, needs_all: bool) -> None:
    watch, deadline_s = watch_of(requests)
    polls.look(watch, lambda watch: TestingWait(watch, deadline_s, requests, frame, needs_all))


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
            under_way.note(made)
    elif operation.startswith("Isendrecv"):
        under_way.sends.add(request)
        under_way.receives.add(request)
    elif made is None or made.is_message:
        under_way.receives.add(request)
        under_way.balance[0] -= 1
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
