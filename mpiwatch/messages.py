"""Sends, receives and probes that can be interrupted, and end with a report if the other rank takes no part.

Blocking calls are done by their non-blocking twins, which are polled. mpi4py's own `Wait` is one call of the
MPI library, and only the end of the process can end it; a request's wait that polls ends with a HangError if
it cannot complete. A rank that polls in a loop of its own, and does nothing else, waits for a message but
looks busy: its polls are counted.

Each rank counts the sends of its cell minus its receives, and notes the lines of its last sends. If the
counts of all ranks do not add up to 0 when the cell has ended well, the notebook asks which messages have
arrived but were not received.

`_start`, `_receive_object` and `_probe` are the layer that moves messages; strict mode replaces them.
"""

# ruff: noqa: PLR0917 (signatures as mpi4py has them; every nanosecond counts)

from __future__ import annotations

import contextlib
import math
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from operator import itemgetter
from time import process_time, sleep
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

from mpi4py import MPI
from mpi4py.MPI import Prequest as RawPrequest  # mpi4py's own, also after `replace_requests`
from mpi4py.MPI import Request as RawRequest
from numpy import ndarray

from mpiwatch import snapshot, waiting
from mpiwatch.collectives import ChannelComm
from mpiwatch.library_calls import REPLACED, LikeMpi4py, like
from mpiwatch.recorder import NAME_BYTES, ORIGIN_BYTES, PURPOSE_BYTES, CellState, WaitingIn, fit
from mpiwatch.report import (
    NONBLOCKING_COLLECTIVES,
    NONBLOCKING_RECEIVES,
    NONBLOCKING_SENDS,
    PROBES,
    ranks_phrase,
)
from mpiwatch.snapshot import line_of
from mpiwatch.waiting import SPIN_S, Over, Waiting, Watch, wait_until, world_ranks
from mpiwatch.wrapper import (
    add_methods,
    check_buffers,
    check_message,
    flat,
    nbytes,
    parse,
    what_it_holds,
)

__all__ = ["RawPrequest", "RawRequest"]

SPIN_IN_SCHEDULE_S = 0.05  # much longer than a segment takes between two ranks of one machine
KEPT = 100
SENDS_NOTED = 200
NO_PEER = -99  # the peer of a collective
# Before it is certain that no message is on its way: a poll moves at least one, and each rank can have only
# some hundred of those that a finished Send has left with MPI.
POLLS_WHILE_STUCK = 300
CERTAIN_S = 1.0  # of nothing but polls, before the rank counts as waiting
GAP_S = 1.0  # after a longer gap between two samples, the time between them is unknown
# A rank that computes or sleeps between its polls makes fewer, or spends more time on each.
LEAST_PER_S, MOST_CPU_S = 2_000, 20e-6

_ALONE = [object()]  # refers to an object that nothing else refers to
_SENDS, _RECEIVES = frozenset(NONBLOCKING_SENDS), frozenset(NONBLOCKING_RECEIVES)
_MESSAGES = _SENDS | _RECEIVES


class Made(NamedTuple):
    """The call that made a request; `peer` is a rank of `comm`, negative for any or none."""

    operation: str
    comm: Any  # of class ChannelComm, whose module imports this one
    peer: int
    tag: int
    code: CodeType
    instruction: int

    @property
    def line(self) -> str:
        """Return the line of the call."""
        return line_of(self.code, self.instruction)


def made_by(request: Any) -> Made | None:
    """Return the call that made a request, if it is known."""
    made = getattr(request, "made", None)
    return Made(*made) if made else None


class UnderWay:
    """Requests that may not have completed, with their operations. They hold their buffers: at most KEPT.

    `left`: those of cells that have failed, to which the session may still refer.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[Any, str]] = []
        self.left: dict[int, tuple[Any, str]] = {}
        self.lost_sends = self.lost_receives = False  # permanent: an untracked message may be under way

    def add(self, request: Any, made: tuple[Any, ...]) -> None:
        """Count a request as under way, until it has completed; `made`: the items of its Made."""
        operation = made[0]
        if operation in _SENDS:
            balance[0] += 1
            noted.append(made)
        elif operation in _RECEIVES:
            balance[0] -= 1
        self.requests.append((request, operation))
        if len(self.requests) > KEPT:
            self._tidy()
            if len(self.requests) > KEPT:
                self.requests, self.lost_sends, self.lost_receives = [], True, True

    def _tidy(self) -> None:
        # A request is false once its caller has waited for it. MPI is not asked: another object with the same
        # handle may have completed it, and MPI may crash on a handle that is no longer valid. A persistent
        # request keeps its handle; it is added each time it starts.
        self.requests = [
            (request, operation)
            for request, operation in self.requests
            if request and not (isinstance(request, RawPrequest) and request.Get_status())
        ]

    def has_sends(self, besides: MPI.Request | None = None) -> bool:
        """Tell whether a message may be under way to another rank."""
        return self.lost_sends or self._has(_SENDS, besides)

    def has_receives(self, besides: MPI.Request | None = None) -> bool:
        """Tell whether a receive may be under way."""
        return self.lost_receives or self._has(_RECEIVES, besides)

    def _has(self, operations: Collection[str], besides: MPI.Request | None) -> bool:
        self._tidy()
        return any(
            request is not besides and (operation in operations or operation.startswith("Isendrecv"))
            for request, operation in self.requests
        )

    def leave_behind(self) -> None:
        """Keep the requests of a failed cell, and their buffers, but count none as under way any more."""
        self.left |= {id(kept[0]): kept for kept in self.requests if kept[0]}
        self.requests, self.lost_sends, self.lost_receives = [], False, False

    def cancel_lost(self) -> None:
        """Cancel the receives left by failed cells to which nothing refers any more: their buffers can go.

        Sends stay until they complete, and so do receives for which the session may still wait.
        """
        for key in list(self.left):
            if not self.left[key][0]:
                del self.left[key]  # its caller has waited for it
            elif sys.getrefcount(self.left[key][0]) <= sys.getrefcount(_ALONE[0]) and _is_only_handle(
                self.left[key][0]
            ):
                request, operation = self.left.pop(key)
                if operation in _RECEIVES:
                    with contextlib.suppress(MPI.Exception):
                        cancel(request)
                else:
                    keep(request)


def _is_only_handle(request: Any) -> bool:
    """Return whether no other object has this handle, which that object may have completed."""
    made = made_by(request)  # in strict mode, calls have several handles
    return made is not None and not made.comm.copies_requests and getattr(request, "call", None) is None


under_way = UnderWay()  # of this process
balance = [0]  # sends minus receives of the cell
noted: deque[tuple[Any, ...]] = deque(maxlen=SENDS_NOTED)  # the last sends, each the items of a Made
on_request: Callable[[Any], object] | None = None  # strict mode notes the requests of the program

# Sends of calls that have ended in a hang report: their buffers must stay until a rank takes the messages.
_unfinished: list[MPI.Request] = []


def has_unfinished() -> bool:
    """Tell whether a send of an earlier hang is under way."""
    _unfinished[:] = [each for each in _unfinished if not each.Test()]
    return bool(_unfinished)


def keep(request: MPI.Request) -> None:
    """Keep a send's buffer until the other rank takes the message."""
    _unfinished.append(request)
    has_unfinished()


def cancel(request: MPI.Request) -> None:
    """Cancel a receive that no message has matched."""
    if request != MPI.REQUEST_NULL:
        request.Cancel()
        RawRequest.Wait(request)


class MessageWait(Waiting):
    """Waiting for a message to arrive or to be taken; `peer` is a rank in the world, or -1 for any rank.

    `purpose`: what the message is part of, such as a schedule; empty for a message of the caller's own. Ranks
    that wait in calls of their own may wait for each other in a circle.
    """

    origin = ""  # the line that made the request
    failed_polls = 0  # by a rank that polls in a loop of its own
    sends_too = False  # whether the call also sends a message, which its peer may receive
    is_circular = True  # whether ranks in such waits may wait for each other in a circle
    subject: MPI.Request | None = None  # what is waited for, if it is a request
    stuck_since = 0, 0  # what `confirmation` returned, and how often MPI had been polled then

    def __init__(
        self,
        watch: Watch,
        members: list[int],
        deadline_s: float,
        operation: str,
        peer: int,
        tag: int,
        purpose: str = "",
    ) -> None:
        super().__init__(watch, members, deadline_s)
        self.operation, self.peer, self.tag, self.purpose = operation, peer, tag, purpose
        self.may_be_circular = not purpose

    def announce(self) -> None:
        watch, slot = self.watch, self.watch.slot
        watch.post_place(_getframe())
        slot.message_operation = fit(self.operation, NAME_BYTES)
        slot.message_peer, slot.message_tag = self.peer, self.tag
        slot.message_purpose = fit(self.purpose, PURPOSE_BYTES)
        slot.message_origin = fit(self.origin, ORIGIN_BYTES)
        slot.message_polls = self.failed_polls
        slot.message_number = 0
        if self.may_be_circular and self.is_circular and not watch.is_threaded():
            slot.has_sends = self.sends_too or has_unfinished() or under_way.has_sends(self.subject)
            slot.has_receives = under_way.has_receives(self.subject)
            watch.message_waits += 1
            slot.message_number = watch.message_waits
        slot.waiting_in = WaitingIn.MESSAGE

    def cannot_complete(self) -> bool:
        peers = [self.peer] if self.peer >= 0 else [rank for rank in self.members if rank != self.watch.rank]
        return bool(peers) and all(self.watch.has_ended(peer, self.patience_s) for peer in peers)

    def is_stuck(self) -> bool:
        """Return whether this rank and all ranks that it waits for, directly or through others, are stuck.

        Messages that the ranks sent before they began to wait may still be on their way. They have arrived
        when each rank has polled MPI often enough since all were seen to wait; each rank notes this in its
        slot.
        """
        recorder, rank = self.watch.recorder, self.watch.rank
        if self.watch.is_threaded():  # a thread that has begun since then may send the message
            self.watch.slot.message_number = 0
        if not recorder.slots[rank].message_number or (
            self.peer >= 0 and recorder.slots[self.peer].waiting_in != WaitingIn.MESSAGE
        ):
            return False
        waits = snapshot.waits(recorder)
        if rank not in waits or rank not in snapshot.stuck_ranks(waits, recorder.size):
            return False
        closure = snapshot.closure(rank, waits)
        if len({self.watch.machines[other] for other in closure}) > 1:
            return False  # a slow link may hold a message for long; at the deadline, the hub sees the circle
        own = snapshot.confirmation(rank, waits)
        if self.stuck_since[0] != own:
            self.stuck_since = own, self.polls
        if self.polls - self.stuck_since[1] < POLLS_WHILE_STUCK:
            return False
        self.watch.slot.confirmed = own
        return all(
            recorder.slots[other].confirmed == snapshot.confirmation(other, waits) for other in closure
        )


class RequestWait(MessageWait):
    """Waiting for requests: for all of them, or, if not `needs_all`, for one of them.

    The slot names the first one that has not completed.
    """

    def __init__(self, watch: Watch, requests: Sequence[MPI.Request], needs_all: bool) -> None:
        deadlines_s = [made.comm.deadline_s for made in map(made_by, requests) if made]
        deadline_s = max(deadlines_s, default=watch.deadline_s())
        super().__init__(watch, [], deadline_s, "Wait", -1, -1)
        self.requests, self.needs_all = requests, needs_all

    def announce(self) -> None:
        pending = [request for request in self.requests if request and not request.Get_status()]
        self.subject = next(iter(pending), None)
        made = made_by(self.subject)
        if made is None:
            self.operation, self.peer, self.tag, self.origin = "Wait", -1, -1, ""
            self.members = list(range(self.watch.recorder.size))
        else:
            self.members = made.comm._members
            self.operation, self.origin, self.tag = made.operation, made.line, made.tag
            self.peer = made.comm._world_rank(made.peer)
        self.is_circular = self.operation in _MESSAGES and (self.needs_all or len(pending) == 1)
        super().announce()

    def is_stuck(self) -> bool:
        if self.subject is None or not self.subject or self.subject.Get_status():
            self.announce()  # the first one has completed in the meantime
            return False
        return super().is_stuck()

    def cannot_complete(self) -> bool:
        made = made_by(self.subject)
        if made is None or (not self.needs_all and len(self.requests) > 1):
            return False
        if made.peer == NO_PEER:
            return any(self.watch.has_ended(member, self.patience_s) for member in self.members)
        return super().cannot_complete()


class Pending(NamedTuple):
    """What this rank waits for: messages of `operation` on `comm`.

    `receives` lists the ranks of `comm` whose messages have not arrived, `sends` the ranks that have not
    received ours. Both are empty in a collective of the MPI library, which hides which rank is missing.
    """

    comm: MPI.Intracomm
    operation: str
    receives: list[int]
    sends: list[int]

    def __str__(self) -> str:
        """Return a phrase to follow "waited for"."""
        parts = []
        if self.receives:
            parts.append(f"a message from {ranks_phrase(sorted(set(self.receives)))}")
        if self.sends:
            parts.append(f"{ranks_phrase(sorted(set(self.sends)))} to receive a message")
        return " and ".join(parts) or "the other ranks"


def wait_for_pending(over: Over, pending: Callable[[], Pending]) -> None:
    """Return when `over()` is True; raise an error that names the missing rank if that takes too long.

    It is a HangError in a watched process, else a TimeoutError after DEADLINE_S. `pending` is called only if
    the wait takes long.
    """

    def describe(waited: float) -> Waiting | None:
        watch, limit_s = waiting.watched, waiting.DEADLINE_S
        if watch is None and waited < limit_s:
            return None
        missing = pending()
        if watch is None:
            raise TimeoutError(
                f"rank {missing.comm.rank} waited {limit_s:g} s in {missing.operation} for {missing}. "
                f"Expected the same call on all {missing.comm.size} ranks: a rank never made it, or gave "
                "another schedule or array size. Messages may still be under way on this communicator: make "
                "a new one before you go on."
            )
        members = world_ranks(missing.comm.Get_group())
        peers = [members[rank] for rank in (*missing.receives, *missing.sends)]
        operation = "Recv" if missing.receives or not peers else "Send"
        peer = peers[0] if peers else -1
        return MessageWait(watch, members, watch.deadline_s(), operation, peer, -1, missing.operation)

    wait_until(over, describe, SPIN_IN_SCHEDULE_S)


class Polls:
    """The polls of this process. The watchdog samples them; the polling thread looks whether it may go on."""

    def __init__(self) -> None:
        self.failed = self.successes = 0
        self.is_due = False  # whether the next poll without success has to call `look`
        self.wait: MessageWait | None = None
        self.since_s, self.failed_before = 0.0, 0  # when nothing but polls began
        self.sampled = 0.0, 0.0, 0  # the time, CPU time and `failed` of the last sample
        self.activity: tuple[Any, ...] = ()  # differs if the rank has made another call

    def sample(self, watch: Watch, now: float) -> None:
        """Find out whether this rank has only polled since the last sample. Called by the watchdog."""
        (then, cpu_then, failed_then), activity = self.sampled, self.activity
        self.sampled = now, process_time(), self.failed
        last = noted[-1] if noted else None
        self.activity = id(last), watch.calls, balance[0], self.successes, watch.epoch, last
        made, cpu_s = self.failed - failed_then, self.sampled[1] - cpu_then
        only_polls = (
            made > LEAST_PER_S * (now - then)
            and cpu_s < MOST_CPU_S * made
            and now - then < GAP_S
            and self.activity[:-1] == activity[:-1]
            and watch.slot.cell_state == CellState.RUNNING
            and not watch.waiting
            and not watch.is_threaded()
            and not math.isinf(watch.patience)  # a program may poll for as long as it likes
        )
        if only_polls:
            self.is_due = now - self.since_s > CERTAIN_S
            return
        self.since_s, self.failed_before, self.is_due = now, self.failed, False
        if self.wait is not None:
            watch.withdraw(self.wait)
            self.wait = None

    def look(self, describe: Callable[[Watch], MessageWait]) -> None:
        """Note in the slot that this rank waits; raise HangError if that is of no use any more."""
        self.is_due = False
        watch = waiting.watched
        if watch is None or threading.current_thread() is not threading.main_thread():
            return
        wait = self.wait = self.wait or describe(watch)
        wait.may_be_circular, wait.patience_s = False, wait.deadline_s  # the loop may end without a message
        wait.since_s, wait.failed_polls = self.since_s, self.failed - self.failed_before
        watch.slot.message_polls = wait.failed_polls
        try:
            watch.inspect(wait, self.sampled[0] - self.since_s)
        except BaseException:
            watch.withdraw(wait)
            self.wait = None
            raise


polls = Polls()


class PolledRequest(RawRequest, metaclass=LikeMpi4py):
    """An `MPI.Request` with the same handle; `made` is the call that made it, None if unknown.

    Its waits poll; its tests are counted: see WAITS.
    """

    __slots__ = ("made",)
    made: tuple[Any, ...]  # the items of a Made, which takes longer to make


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
    if (made := getattr(request, "made", None)) is not None:
        under_way.add(request, made)


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


def poll_in_python(requests: type[MPI.Request], own: type[MPI.Request]) -> None:
    """Let a class of requests, which stands in for mpi4py's `own`, wait by polling, and count its tests."""
    for name, way in WAITS.items():
        test_name = name.replace("Wait", "Test").replace("wait", "test")
        methods = _polling(name, getattr(requests, test_name), *way)
        for each, method in zip((name, test_name), methods, strict=True):
            method.__name__ = each
            setattr(requests, each, method if name in OF_ONE else classmethod(method))
    like(requests, own)


def _polling(
    name: str, test: Callable[..., Any], is_over: Callable[[Any], bool], value: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Return a wait that calls `test`, and the same test with its calls counted."""
    is_of_one = name in OF_ONE

    def finish(ask: Callable[[], Any], requests: Sequence[MPI.Request]) -> Any:
        result: Any = None

        def is_done() -> bool:
            nonlocal result
            result = ask()
            return is_over(result)

        wait_for(is_done, requests, needs_all=is_of_one or name.endswith("all"))
        return result

    def wait_for_one(self: Any, status: MPI.Status | None = None) -> Any:
        result = test(self, status)
        return value(result if is_over(result) else finish(partial(test, self, status), [self]))

    def wait_for_several(cls: Any, requests: Any, *rest: Any, **named: Any) -> Any:
        result = test(requests, *rest, **named)
        return value(result if is_over(result) else finish(partial(test, requests, *rest, **named), requests))

    def counted(owner: Any, *arguments: Any, **named: Any) -> Any:
        result = test(owner, *arguments, **named) if is_of_one else test(*arguments, **named)
        if is_over(result):
            polls.successes += 1
            return result
        polls.failed += 1
        if polls.is_due:
            tested = [owner] if is_of_one else arguments[0] if arguments else named["requests"]
            polls.look(lambda watch: RequestWait(watch, tested, needs_all=not name.endswith("any")))
        return result

    return wait_for_one if is_of_one else wait_for_several, counted


poll_in_python(PolledRequest, RawRequest)
like(PolledPrequest, RawPrequest)


def wait_for(
    is_done: Over, requests: Sequence[MPI.Request], needs_all: bool = True, spin_s: float = SPIN_S
) -> None:
    """Return when `is_done()`; raise HangError if the requests cannot complete.

    `needs_all`: whether the wait is for all of them, or for any. An error cancels the receives: they would
    take the messages of the next attempt.
    """

    def describe(waited: float) -> RequestWait | None:
        watch = waiting.watched
        return None if watch is None else RequestWait(watch, requests, needs_all)

    try:
        wait_until(is_done, describe, spin_s)
    except BaseException:
        for request in requests:
            made = made_by(request)
            if made is not None and made.operation in _RECEIVES:
                cancel(request)
            elif request and made is not None and made.operation in _SENDS:
                keep(request)
        raise


def replace_requests(
    request: type[MPI.Request] = PolledRequest, prequest: type[MPI.Prequest] = PolledPrequest
) -> None:
    """Replace `MPI.Request` and `MPI.Prequest` by classes that poll, for code that calls the classes."""
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
    if on_request is not None:
        on_request(request)
    return request


# The calls

LOOKS, LOOK_S = 10, 0.001  # for messages that are still on their way, and the time between two

# By ranks of the world: the communicator's row, source, destination, tag, and the line of the send or "".
Message = tuple[int, int, int, int, str]

ANY_SOURCE, ANY_TAG, PROC_NULL = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL

NUMBERS = "?bBhHiIlLqQfdgFDG"  # NumPy's characters for dtypes that MPI has, too

_getframe = sys._getframe
_status = MPI.Status()  # for a receive whose caller asks for none


class MessageError(MPI.Exception):  # so that a program can catch it as mpi4py's own
    """A message that does not fit the buffer of its receive, with the ranks, the call and the sizes."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code)
        self.text = text

    def __str__(self) -> str:
        return self.text


def too_long(error: MPI.Exception, sent_to: str, buffer: Any, status: MPI.Status) -> MessageError:
    """Return the error for a message that is longer than its buffer; part of it is lost."""
    room, is_array = nbytes(buffer), isinstance(buffer, ndarray)
    # The status has what was sent (Open MPI) or what was received; MPICH's text may have both.
    said = re.findall(r"(\d+) bytes received but buffer size is (\d+)", str(error))
    sizes = [status.Get_count(MPI.BYTE), *(int(number) for pair in said for number in pair)]
    sent = f"{max(sizes)} bytes" if max(sizes) > room else "more bytes than fit"
    return MessageError(
        error.Get_error_code(),
        f"{sent_to} was sent {sent} by rank {status.source} (tag {status.tag}), but its buffer "
        f"has room for {what_it_holds(buffer) if is_array else f'{room} bytes'}",
    )


class WatchedMessages(ChannelComm):
    """Send, receive and the like; below the class, methods of mpi4py are led to these methods."""

    # The layer below

    def _start(self, name: str, buf: Any, peer: int, tag: int) -> MPI.Request:
        """Start a send or a receive of this name by its non-blocking twin."""
        if name == "Send":  # this and Recv are called most often, and need no look-up
            return super().Isend(buf, peer, tag)
        if name == "Recv":  # as bytes: `_receive` says if they are no whole number of items
            as_bytes = type(buf) is ndarray and buf.dtype.char in NUMBERS
            return super().Irecv([buf, MPI.BYTE] if as_bytes else buf, peer, tag)
        request: MPI.Request = getattr(super(), STARTED_BY.get(name, name))(buf, peer, tag)
        return request

    def _receive_object(self, name: str, source: int, tag: int, status: Any, sends_too: bool = False) -> Any:
        """Wait for a message of a pickled object, and return the object."""
        return self._matched(name, source, tag, status, sends_too).recv(status)

    def _probe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Any:
        """Do an Iprobe or Improbe."""
        return getattr(super(), name)(source, tag, status)

    # Blocking calls; those that programs make most often take no detour

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Send", buf, dest)
        self._send("Send", self._start("Send", buf, dest, tag), dest, tag, _getframe(1))

    def Recv(
        self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        if type(buf) is not ndarray:
            check_message(self, "Recv", buf, source)
        self._receive("Recv", self._start("Recv", buf, source, tag), buf, source, tag, status)

    def _do_send(self, name: str, buf: Any, dest: int, tag: int) -> None:
        if name[0].isupper() and type(buf) is not ndarray:
            check_message(self, name, buf, dest)
        self._send(name, self._start(name, buf, dest, tag), dest, tag, _getframe(2))

    def _do_bsend(self, name: str, buf: Any, dest: int, tag: int) -> None:
        if name == "Bsend":
            check_message(self, name, buf, dest)
        under_way.lost_sends = True  # the message is in a buffer of MPI
        getattr(super(), name)(buf, dest, tag)

    def _do_recv(self, name: str, buf: Any, source: int, tag: int, status: MPI.Status | None) -> Any:
        if buf is not None:
            super().recv(buf, PROC_NULL)  # receives nothing; mpi4py warns that it ignores `buf`
        return self._receive_object(name, source, tag, status)

    def _do_sendrecv_of_object(
        self, name: str, obj: Any, dest: int, sendtag: int, buf: Any, source: int, tag: int, status: Any
    ) -> Any:
        sent = self._start("send", obj, dest, sendtag)
        try:
            received = self._receive_object(name, source, tag, status, dest != PROC_NULL)
        except BaseException:
            keep(sent)
            raise
        self._send("send", sent, dest, sendtag, _getframe(2))
        return received

    def _do_sendrecv(
        self,
        name: str,
        sent: Any,
        dest: int,
        sendtag: int,
        buf: Any,
        source: int,
        tag: int,
        status: Any,
        depth: int = 2,
    ) -> None:
        check_message(self, name, sent, dest)
        check_message(self, name, buf, source)
        receiving = self._start("Recv", buf, source, tag)
        try:
            sending = self._start("Send", sent, dest, sendtag)
        except BaseException:
            cancel(receiving)
            raise
        try:
            self._receive(name, receiving, buf, source, tag, status, dest != PROC_NULL)
        except BaseException:
            keep(sending)
            raise
        self._send("Send", sending, dest, sendtag, _getframe(depth))

    def _do_sendrecv_replace(
        self, name: str, buf: Any, dest: int, sendtag: int, source: int, tag: int, status: Any
    ) -> None:
        check_message(self, name, buf, dest)
        values = flat(buf)
        if values is None:  # `flat` cannot copy this buffer
            super().Sendrecv_replace(buf, dest, sendtag, source, tag, status)
            return
        datatype, copy = parse(buf).datatype, values.copy()
        sent = copy if datatype is None else [copy, datatype]
        self._do_sendrecv(name, sent, dest, sendtag, buf, source, tag, status, 3)

    def _send(self, name: str, request: MPI.Request, dest: int, tag: int, at: FrameType) -> None:
        """Wait until a message has been sent, or has been received if the send is synchronous.

        `at`: the frame of the caller.
        """
        balance[0] += 1
        noted.append((name, self, dest, tag, at.f_code, at.f_lasti))
        try:
            if not request.Test():
                self._wait(name, request.Test, dest, tag)
        except BaseException:
            keep(request)
            raise

    def _receive(
        self,
        name: str,
        request: MPI.Request,
        buf: Any,
        source: int,
        tag: int,
        status: MPI.Status | None,
        sends_too: bool = False,
    ) -> None:
        """Wait until a message has been received; say which call, and the sizes, if it does not fit."""
        balance[0] -= 1
        status = _status if status is None else status
        try:
            if not request.Test(status):
                self._wait(name, partial(request.Test, status), source, tag, sends_too)
        except MPI.Exception as error:
            cancel(request)
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            raise too_long(error, f"rank {self.rank}: {name}", buf, status) from None
        except BaseException:
            cancel(request)
            raise
        if type(buf) is ndarray and (length := status.Get_count(MPI.BYTE)) % (buf.itemsize or 1):
            raise MessageError(
                MPI.ERR_TYPE,  # MPICH would abort
                f"rank {self.rank}: {name} was sent {length} bytes by rank {status.source} "
                f"(tag {status.tag}), but an item of its buffer has {buf.itemsize} bytes ({buf.dtype}). "
                "Give the buffer the dtype of what is sent",
            )

    def _matched(
        self, name: str, source: int, tag: int, status: MPI.Status | None, sends_too: bool = False
    ) -> MPI.Message:
        """Wait for a message, and take it out of the queue."""
        message = None
        probe = "Improbe" if name == "Mprobe" else "improbe"

        def has_arrived() -> bool:
            nonlocal message
            message = self._probe(probe, source, tag, status)
            return message is not None

        self._wait(name, has_arrived, source, tag, sends_too)
        balance[0] -= 1
        assert message is not None, f"{name} from {source} with tag {tag} is over without a message"
        return message

    def _do_mprobe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> MPI.Message:
        under_way.lost_receives = True  # another object receives the message
        return self._matched(name, source, tag, status)

    def _do_probe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Literal[True]:
        self._wait(name, lambda: self._probe("Iprobe", source, tag, status), source, tag)
        return True

    def _wait(
        self, name: str, is_done: Callable[[], bool], peer: int, tag: int, sends_too: bool = False
    ) -> None:
        """Wait for a message of the call `name`."""

        def describe(waited: float) -> MessageWait | None:
            if self._channel is None:
                return None
            wait = self._message_wait(self._channel.watch, name, peer, tag)
            wait.sends_too = sends_too
            return wait

        wait_until(is_done, describe)

    def _message_wait(self, watch: Watch, name: str, peer: int, tag: int) -> MessageWait:
        return MessageWait(watch, self._members, self.deadline_s, name, self._world_rank(peer), tag)

    # Calls that do not wait

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Isend", buf, dest)
        made: MPI.Request = polled(super().Isend(buf, dest, tag), "Isend", self, dest, tag, _getframe(1))
        return made

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
        if type(buf) is not ndarray:
            check_message(self, "Irecv", buf, source)
        made: MPI.Request = polled(super().Irecv(buf, source, tag), "Irecv", self, source, tag, _getframe(1))
        return made

    def _do_start(self, name: str, buf: Any, peer: int, tag: int) -> Any:
        """Do a non-blocking or persistent send or receive."""
        if name[0].isupper() and type(buf) is not ndarray:
            check_message(self, name, buf, peer)
        return polled(self._start(name, buf, peer, tag), name, self, peer, tag, _getframe(2))

    def _do_start_more(self, name: str, given: dict[str, Any]) -> Any:
        """Do an Isendrecv, Isendrecv_replace or partitioned message; of two peers, the source counts."""
        for buffer, end in ("buf", "dest"), ("buf", "source"), ("sendbuf", "dest"), ("recvbuf", "source"):
            if buffer in given and end in given:
                check_message(self, name, given[buffer], given[end], given.get("partitions", 1))
        request = getattr(super(), name)(**given)
        peer = given["source"] if "source" in given else given["dest"]
        tag = given["recvtag"] if "recvtag" in given else given["tag"]
        return polled(request, name, self, peer, tag, _getframe(2))

    def _do_start_collective(self, name: str, given: dict[str, Any]) -> Any:
        """Do a non-blocking or persistent collective."""
        buffers = [given[key] for key in ("buf", "sendbuf", "recvbuf") if key in given]
        check_buffers(self, name, buffers, given.get("root", 0))
        return polled(self._start_collective(name, given), name, self, NO_PEER, -1, _getframe(2))

    def _do_look(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Any:
        """Do a probe that does not wait; its calls without success are counted."""
        under_way.lost_receives = under_way.lost_receives or name.lower() == "improbe"
        found = self._probe(name, source, tag, status)
        if found:
            polls.successes += 1
            return found
        polls.failed += 1
        if polls.is_due and self._channel is not None:
            polls.look(lambda watch: self._message_wait(watch, name, source, tag))
        return found

    def _schedule_messages(self) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
        own = type(self)
        return (
            super().Isend if own.Isend is WatchedMessages.Isend else self.Isend,
            super().Irecv if own.Irecv is WatchedMessages.Irecv else self.Irecv,
        )


# A call -> the call of mpi4py that starts it.
STARTED_BY = {"Send": "Isend", "Rsend": "Irsend", "Ssend": "Issend", "Recv": "Irecv"}
STARTED_BY |= {"send": "isend", "ssend": "issend", "recv": "irecv", "Bsend": "Ibsend", "bsend": "ibsend"}

_STARTS = {*NONBLOCKING_SENDS, *NONBLOCKING_RECEIVES} - {"Isend", "Irecv", "Psend_init", "Precv_init"}
for _via, _names in {
    "_do_send": ("Rsend", "Ssend", "send", "ssend"),
    "_do_bsend": ("Bsend", "bsend"),
    "_do_recv": ("recv",),
    "_do_sendrecv_of_object": ("sendrecv",),
    "_do_sendrecv": ("Sendrecv",),
    "_do_sendrecv_replace": ("Sendrecv_replace",),
    "_do_probe": ("Probe", "probe"),
    "_do_mprobe": ("Mprobe", "mprobe"),
    "_do_look": PROBES,
    "_do_start": _STARTS,
}.items():
    add_methods(WatchedMessages, _names, _via)
_MORE = "Isendrecv", "Isendrecv_replace", "Psend_init", "Precv_init"
add_methods(WatchedMessages, _MORE, "_do_start_more", by_name=True)
add_methods(WatchedMessages, NONBLOCKING_COLLECTIVES, "_do_start_collective", by_name=True)


def unreceived(watch: Watch) -> tuple[list[Message], list[Message]]:
    """Return the first message from each rank that waits to be received here, and this rank's last sends."""
    for _ in range(LOOKS):
        if arrived := list(_arrived(watch)):
            break
        sleep(LOOK_S)
    return arrived, [
        (channel.row, watch.rank, channel.members[dest], tag, line_of(code, instruction))
        for _, comm, dest, tag, code, instruction in noted
        if (channel := comm._channel) and channel in watch.channels and 0 <= dest < len(channel.members)
    ]


def _arrived(watch: Watch) -> Iterable[Message]:
    status = MPI.Status()
    for channel in watch.channels:
        for source, member in enumerate(channel.members):
            if channel.comm.Iprobe(source, ANY_TAG, status):
                yield channel.row, member, watch.rank, status.tag, ""
