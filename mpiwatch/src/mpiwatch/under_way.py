"""Messages and requests that have not completed, and what a cell has sent and received.

Each rank counts the sends of its cell minus its receives, and notes the lines of its last sends. If the
counts of all ranks do not add up to 0 when the cell has ended well, the notebook asks which messages have
arrived but were not received, and which requests were never completed.

A request is known by a weak reference. If the program drops it before it has waited for it, the request hands
itself over (`PolledRequest.__del__`), and its buffer stays until the message has arrived or been taken.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter, deque
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any, NamedTuple

from mpi4py import MPI
from mpi4py.MPI import Prequest as RawPrequest  # mpi4py's own, also after `replace_requests`
from mpi4py.MPI import Request as RawRequest

from mpiwatch.places import is_own_code, place_of_instruction
from mpiwatch.report import NONBLOCKING_RECEIVES, NONBLOCKING_SENDS

__all__ = ["RawPrequest", "RawRequest"]

KEPT = 100  # requests, before those that are complete are forgotten
SENDS_NOTED = 200
NO_PEER = -99  # the peer of a collective

SENDING, RECEIVING = frozenset(NONBLOCKING_SENDS), frozenset(NONBLOCKING_RECEIVES)


class Made(NamedTuple):
    """The call that made a request; `peer` is a rank of `comm`, negative for any or none."""

    operation: str
    comm: Any  # of class ChannelComm
    peer: int
    tag: int
    code: CodeType
    instruction: int

    @property
    def line(self) -> str:
        """Return the line of the call; empty if a library has made it."""
        if not is_own_code(self.code):
            return ""
        return place_of_instruction(self.code, self.instruction)

    @property
    def line_with_cell(self) -> str:
        """Return the line of the call, with the number of its cell."""
        return place_of_instruction(self.code, self.instruction, is_running=False)

    def takes(self, comm: Any, source: int, tag: int) -> bool:
        """Return whether this is a receive that may take the message which another receive waits for."""
        is_same = self.comm == comm and self.operation in RECEIVING
        may_be_from = self.peer in (MPI.ANY_SOURCE, source) or source == MPI.ANY_SOURCE
        return is_same and may_be_from and (self.tag in (MPI.ANY_TAG, tag) or tag == MPI.ANY_TAG)


def made_by(request: Any) -> Made | None:
    """Return the call that made a request, if it is known."""
    made = getattr(request, "made", None)
    return Made(*made) if isinstance(made, tuple) else None


class CellTraffic:
    """What this rank's cell has sent minus what it has received, and the last sends: items of a Made.

    `open_before`: how many requests of each kind were open when the cell began. `left_open`: those that the
    last cell has left.
    """

    def __init__(self) -> None:
        self.balance = 0
        self.open_before: Counter[tuple[str, int, str, bool]] = Counter()
        self.left_open: list[tuple[str, int, str, bool]] = []
        self.sends: deque[tuple[Any, ...]] = deque(maxlen=SENDS_NOTED)


traffic = CellTraffic()  # of this process


class OpenRequest(NamedTuple):
    """A request that has not completed, and the call that made it."""

    request: Any
    made: Made


class UnderWay:
    """Requests that may not have completed.

    `has_untracked_sends`, `has_untracked_receives`: a message without a request may be under way.
    """

    def __init__(self) -> None:
        self.requests: dict[int, tuple[weakref.ref[Any], tuple[Any, ...]]] = {}  # by their identities
        self.dropped: list[
            OpenRequest
        ] = []  # the program can no longer wait for them; we have the only handles
        self.has_untracked_sends = self.has_untracked_receives = False

    def add(self, request: Any, made: tuple[Any, ...]) -> None:
        """Count a request as under way, until it has completed; `made`: the items of its Made."""
        operation = made[0]
        if operation in SENDING:
            traffic.balance += 1
            traffic.sends.append(made)
        elif operation in RECEIVING:
            traffic.balance -= 1
        self.requests[id(request)] = weakref.ref(request), made
        if len(self.requests) > KEPT:
            self._tidy()

    def drop(self, request: Any) -> None:
        """Take a request over which the program can no longer wait for; called as it is destroyed."""
        self.requests.pop(id(request), None)
        made = made_by(request)
        if made is None or not RawRequest.__bool__(request) or made.comm.copies_requests:
            return  # it is complete, or another object has its handle
        self.dropped.append(OpenRequest(raw_copy(request), made))

    def held(self) -> Iterator[OpenRequest]:
        """Yield the requests that the program may still wait for.

        A request is false once its caller has waited for it. MPI is not asked: another object with the same
        handle may have completed it, and MPI may crash on a handle that is no longer valid. A persistent
        request keeps its handle; it is added each time it starts.
        """
        for reference, made in list(self.requests.values()):
            request = reference()
            if request is None or not request:
                continue
            if not (isinstance(request, RawPrequest) and request.Get_status()):
                yield OpenRequest(request, Made(*made))

    def all(self, besides: MPI.Request | None = None) -> Iterator[Made]:
        """Yield the calls of all requests that may not have completed, `besides` one."""
        self.dropped = [dropped for dropped in self.dropped if not dropped.request.Test()]
        for request, made in (*self.held(), *self.dropped):
            if request is not besides:
                yield made

    def _tidy(self) -> None:
        held = {id(request): made for request, made in self.held()}
        self.requests = {key: entry for key, entry in self.requests.items() if key in held}
        self.dropped = [dropped for dropped in self.dropped if not dropped.request.Test()]

    def has_sends(self, besides: MPI.Request | None = None) -> bool:
        """Tell whether a message may be under way to another rank."""
        return self.has_untracked_sends or self._has(SENDING, besides)

    def has_receives(self, besides: MPI.Request | None = None) -> bool:
        """Tell whether a receive may be under way."""
        return self.has_untracked_receives or self._has(RECEIVING, besides)

    def _has(self, operations: Collection[str], besides: MPI.Request | None) -> bool:
        names = (made.operation for made in self.all(besides))
        return any(name in operations or name.startswith("Isendrecv") for name in names)

    def rival(self, comm: Any, source: int, tag: int, besides: MPI.Request | None) -> Made | None:
        """Return an earlier receive that takes the message which a receive with these arguments waits for."""
        return next((made for made in self.all(besides) if made.takes(comm, source, tag)), None)

    def end_all(self) -> list[OpenRequest]:
        """End all requests, because their cell has failed: cancel receives, keep the buffers of sends.

        Return those that the program still has.
        """
        held = list(self.held())
        for request, made in (*held, *self.dropped):
            if made.operation in RECEIVING and not made.comm.copies_requests:
                with contextlib.suppress(MPI.Exception):
                    cancel(request)
            elif made.operation in SENDING:
                unfinished.append(copy_of(request))
        self.requests, self.dropped = {}, []
        self.has_untracked_sends = self.has_untracked_receives = False
        return held


def raw_copy(request: Any) -> MPI.Request:
    """Return a request of mpi4py's own with the same handle and buffer."""
    return (RawPrequest if isinstance(request, RawPrequest) else RawRequest)(request)


def copy_of(request: Any) -> Any:
    """Return another request for the same message; in strict mode, requests drive calls of their own."""
    copy = getattr(request, "copy", None)
    return raw_copy(request) if copy is None else copy()


under_way = UnderWay()  # of this process

# Sends of calls that have ended in a hang report: their buffers must stay until a rank takes the messages.
unfinished: list[MPI.Request] = []


def has_unfinished() -> bool:
    """Tell whether a send of an earlier hang is under way."""
    unfinished[:] = [request for request in unfinished if not request.Test()]
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
