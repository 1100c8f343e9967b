"""Calls under way in strict mode: headers describe their messages and match them in Python.

A header travels before each message. Headers and messages use a duplicate of the communicator. A header
carries the tag of the caller; the message itself has a number as its tag, so that the receive of a matched
header can never take another message. Headers of one rank arrive in the order in which it sent them, so
messages match as MPI prescribes.
"""

from __future__ import annotations

import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from mpiwatch import findings, requests
from mpiwatch.arguments import WHOLE, check_readable
from mpiwatch.findings import Category, Region, StrictError, add
from mpiwatch.library_calls import RawIntracomm, like
from mpiwatch.report import CallRecord, call_details, request_kind
from mpiwatch.requests import EndedError, PolledRequest, RawPrequest, RawRequest
from mpiwatch.signatures import Signature, misfit, of_message
from mpiwatch.snapshot import mismatch

HEADER_TAG = 0
NUMBERS = 1 << 14  # how many messages two ranks can have under way at once
IRECV_BYTES = getattr(mpi4py.rc, "irecv_bufsz", 1 << 15)  # of an irecv without a buffer
HEADERS_TESTED = 64  # kept before sent headers are dropped
# Size of a non-blocking collective's header, which all ranks exchange: of its description, whose longest part
# is a line of the program (at most 80 characters), and of each rank's time on a vector clock.
CALL_BYTES, TIME_BYTES = 1024, 10

lock = threading.RLock()  # held by a thread that reads or writes what the exchanges keep


class Clock:
    """A vector clock: for each rank of the world, how many of its steps happened before now."""

    def __init__(self) -> None:
        self.rank, self.times = 0, [0]

    def tick(self) -> int:
        """Count a step of this rank; return its number."""
        self.times[self.rank] += 1
        return self.times[self.rank]

    def merge(self, times: Sequence[int]) -> None:
        """Note that all steps on another rank's clock happened before now."""
        self.times = list(map(max, self.times, times))


clock = Clock()  # of this process
headers_sent: Counter[int] = Counter()  # by rank of the world
headers_received: Counter[int] = Counter()


@dataclass
class Header:
    """The description of a message by its sender. `clock`: the times on the sender's."""

    number: int
    tag: int
    operation: str
    place: str
    signature: Signature
    clock: list[int]
    source: int = -1  # filled in by the receiver
    was_reported: bool = False  # as never received

    def __str__(self) -> str:
        """Return the operation, the signature, the sender, the tag and the line."""
        return f"{self.operation} of {self.signature} on rank {self.source}, tag {self.tag} ({self.place})"

    def fits(self, source: int, tag: int) -> bool:
        """Tell whether a receive with this source and tag may take the message."""
        return source in (MPI.ANY_SOURCE, self.source) and tag in (MPI.ANY_TAG, self.tag)


class Exchange:
    """The headers of one communicator. `members`: ranks of the world, by rank in the communicator."""

    def __init__(self, comm: MPI.Intracomm, members: list[int]) -> None:
        self.shadow = RawIntracomm.Dup(RawIntracomm(comm))
        self.rank, self.members = comm.rank, members
        self.headers: list[tuple[MPI.Request, bytes]] = []  # headers under way
        self.forget()
        exchanges.append(self)

    def renew(self, duplicate: MPI.Intracomm) -> None:
        """Go on with another duplicate of the communicator: none of the earlier messages will arrive."""
        self.shadow = duplicate
        self.headers = []
        self.forget()

    def forget(self) -> None:
        """Forget all messages."""
        self.numbers = [0] * len(self.members)
        self.unexpected: list[Header] = []
        self.posted: list[ReceiveOperation] = []
        self.matched: list[ReceiveOperation] = []  # their messages have not been requested
        self.wildcards: list[ReceiveOperation] = []  # receives from any source that have matched

    def close(self) -> None:
        """Report the messages that were never received, and free the duplicate. Collective."""
        self.report_leftovers()
        exchanges.remove(self)
        self.discard()
        self.shadow.Free()

    def next_number(self, dest: int) -> int:
        """Return the tag of the next message to a rank."""
        self.numbers[dest] += 1
        return 1 + self.numbers[dest] % NUMBERS

    def announce(self, header: Header, dest: int) -> None:
        """Send a header."""
        clock.tick()
        header.clock = list(clock.times)
        text = pickle.dumps(header)
        self.headers.append((self.shadow.Isend([text, MPI.BYTE], dest, HEADER_TAG), text))
        if len(self.headers) > HEADERS_TESTED:
            self.headers = [(request, kept) for request, kept in self.headers if not request.Test()]
        headers_sent[self.members[dest]] += 1

    def progress(self) -> None:
        """Read headers that have arrived, and match them with receives."""
        status = MPI.Status()
        with lock:
            while (found := self.shadow.Improbe(MPI.ANY_SOURCE, HEADER_TAG, status)) is not None:
                text = bytearray(status.Get_count(MPI.BYTE))
                found.Recv([text, MPI.BYTE])
                header: Header = pickle.loads(text)
                header.source = status.source
                headers_received[self.members[header.source]] += 1
                receive = next((each for each in self.posted if header.fits(each.source, each.tag)), None)
                if receive is None:
                    self.unexpected.append(header)
                else:
                    self.posted.remove(receive)
                    self._match(receive, header)

    def post(self, receive: ReceiveOperation) -> None:
        """Add a receive; match it with the first message that fits it."""
        with lock:
            self.progress()
            header = self.find(receive.source, receive.tag)
            if header is None:
                self.posted.append(receive)
            else:
                self.unexpected.remove(header)
                self._match(receive, header)

    def withdraw(self, receive: ReceiveOperation) -> None:
        """Remove a receive whose message has not been requested; another receive may take the message."""
        with lock:
            for kept in self.posted, self.matched, self.wildcards:
                if receive in kept:
                    kept.remove(receive)
            if receive.header is not None:
                self.unexpected.insert(0, receive.header)
                receive.header = None

    def find(self, source: int, tag: int) -> Header | None:
        """Return the first unmatched header that has arrived and fits."""
        return next((header for header in self.unexpected if header.fits(source, tag)), None)

    def _match(self, receive: ReceiveOperation, header: Header) -> None:
        receive.header = header
        self.matched.append(receive)
        self._find_races(receive.source, receive.tag, header)
        if receive.source == MPI.ANY_SOURCE:
            receive.matched_at = clock.tick()
            self.wildcards.append(receive)
        clock.merge(header.clock)
        clock.tick()

    def _find_races(self, source: int, tag: int, header: Header) -> None:
        """Report a receive from any source that could have taken this message instead.

        `source` and `tag`: of the receive that has taken it. Repeated receives from any source with the same
        tag, as in a loop of a master, are no error: each takes whichever message comes.
        """
        for earlier in self.wildcards:
            taken = earlier.header
            if (
                taken is not None
                and taken.source != header.source
                and header.fits(earlier.source, earlier.tag)
                and header.clock[clock.rank] < earlier.matched_at
                and (source, tag) != (earlier.source, earlier.tag)
            ):
                text = (
                    f"{earlier.operation} from any source took the {taken}, but could have taken the "
                    f"{header}: the order of arrival decides"
                )
                add(Category.MESSAGE_RACE, text, earlier.place)

    def report_leftovers(self) -> None:
        """Report, once each, messages that have arrived but were never received, and their races."""
        self.progress()
        for header in self.unexpected:
            self._find_races(header.source, header.tag, header)
            if not header.was_reported:
                header.was_reported = True
                text = (
                    f"the message was never received: {header.operation} of {header.signature} from rank "
                    f"{header.source} to rank {self.rank}, tag {header.tag}"
                )
                add(Category.CALL_MATCHING, text, header.place)

    def discard(self) -> None:
        """Receive messages that no receive has taken, so that their senders can end."""
        for header in self.unexpected:
            self.shadow.Recv([bytearray(header.signature.nbytes), MPI.BYTE], header.source, header.number)
        self.forget()


exchanges: list[Exchange] = []  # all open exchanges of this process


def progress(*_: Any) -> None:
    """Read the headers of all communicators, and receive messages whose receives are posted.

    Call this only while this rank waits. Until then, a message stays where it is even if it has a receive, so
    that the program's writes to the receive buffer can be told from MPI's.
    """
    with lock:
        for exchange in list(exchanges):
            exchange.progress()
            while exchange.matched:
                exchange.matched.pop().start()


class Operation:
    """A call under way, here one of the MPI library of which only the line is known.

    `what`: the operation, its peer and its tag. `regions`: the memory that it uses. `advance` returns whether
    the call is complete; `finish` ends it. Both return at once. `received`: the object that it has received.
    """

    may_be_freed = False  # whether a program may free its request while it is under way
    was_cancelled = False
    is_known_complete = False  # to the program, by Get_status
    error: StrictError | None = None  # raised by a wait
    received: Any = None

    def __init__(
        self, operation: str, place: str, request: MPI.Request | None = None, what: str = ""
    ) -> None:
        self.operation, self.place, self.what = operation, place, what or operation
        self.request = request
        self.regions: list[Region] = []

    def advance(self) -> bool:
        """Make progress without waiting; return whether the call is complete."""
        return self.request is not None and bool(RawRequest.Get_status(self.request))

    def finish(self, status: MPI.Status | None) -> None:
        """End the call."""
        assert self.request is not None
        self.received = RawRequest.wait(self.request, status)
        self.release()

    def cancel(self) -> None:
        """Give up a receive that has not matched; a send goes on, but its buffer is no longer checked."""

    def release(self, check: bool = True) -> None:
        """End the use of the memory."""
        for region in self.regions:
            region.end(check)


class EndedOperation(Operation):
    """A call of before a failed cell; `what`: why it cannot be waited for."""

    was_cancelled = True  # so it is no finding that nobody has waited for it

    def __init__(self, why: str) -> None:
        super().__init__("", "", what=why)

    def advance(self) -> bool:
        raise EndedError(self.what)


class SendOperation(Operation):
    """A send, preceded by its header; it completes when its receive has matched, unless it is buffered."""

    may_be_freed = True

    def __init__(  # noqa: PLR0917
        self, exchange: Exchange, operation: str, message: Any, dest: int, tag: int, place: str
    ) -> None:
        is_object = operation[0].islower()
        self.data = MPI.pickle.dumps(message) if is_object else message  # kept until it is sent
        signature = Signature(len(self.data), "object", len(self.data)) if is_object else of_message(message)
        # Not Irsend either: the message itself is received after the receive was posted.
        mode = "Ibsend" if "bsend" in operation.lower() else "Issend"
        with lock:
            number = exchange.next_number(dest)
            buffer = [self.data, MPI.BYTE] if is_object else message
            request: MPI.Request = getattr(exchange.shadow, mode)(buffer, dest, number)
            exchange.announce(Header(number, tag, operation, place, signature, []), dest)
        super().__init__(operation, place, request, f"{operation} to rank {dest}, tag {tag}")
        if not is_object:
            self.regions = [Region(operation, place, message, is_written=False)]

    def advance(self) -> bool:
        if super().advance():
            return True
        progress()
        return super().advance()

    def cancel(self) -> None:
        self.release(check=False)


class ReceiveOperation(Operation):
    """A receive. The message itself is received when its header has matched and the caller waits."""

    def __init__(  # noqa: PLR0917
        self, exchange: Exchange, operation: str, buffer: Any, source: int, tag: int, place: str
    ) -> None:
        peer = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
        what = f"{operation} from {peer}" + (f", tag {tag}" if tag != MPI.ANY_TAG else "")
        super().__init__(operation, place, None, what)
        self.exchange, self.buffer, self.source, self.tag = exchange, buffer, source, tag
        self.given = buffer  # of irecv, the bytes that the program has room for
        self.header: Header | None = None  # of the message that it has matched
        self.matched_at = 0  # on this rank's clock
        self.has_landed = False
        self.signature = Signature(0, "object", 0)
        self.is_object = operation[0].islower()
        if not self.is_object:
            check_readable(buffer, WHOLE, 1, receives=True)
            self.signature = of_message(buffer)
            self.regions = [Region(operation, place, buffer, is_written=True)]
            self.buffer = self.regions[0].message  # with datatypes of its own
        exchange.post(self)

    def advance(self) -> bool:
        if self.was_cancelled:
            return True
        if self.header is None:
            progress()
        self.start()
        if self.error is not None:
            raise self.error
        if not super().advance():
            return False
        if not self.has_landed:
            self.has_landed = True
            for region in self.regions:
                region.remember()
        return True

    def start(self) -> None:
        """Begin to receive the message itself if its header has matched."""
        with lock:
            header = self.header
            if header is None or self.request is not None or self.error is not None:
                return
            for region in self.regions:
                region.check()
            wrong = misfit(header.signature, self.signature) or self.excess(header.signature.nbytes)
            if wrong:
                self.release(check=False)
                scratch = bytearray(header.signature.nbytes)
                self.exchange.shadow.Recv([scratch, MPI.BYTE], header.source, header.number)
                expects = "" if self.is_object else f" for {self.signature}"
                self.error = StrictError(
                    f"{self.operation}{expects} ({self.place}) does not fit the message that arrived: "
                    f"{header}. Reason: {wrong}.",
                    self.exchange.rank,
                )
                return
            if self.is_object:
                self.buffer = bytearray(header.signature.nbytes)
            buffer = [self.buffer, MPI.BYTE] if self.is_object else self.buffer
            self.request = self.exchange.shadow.Irecv(buffer, header.source, header.number)

    def excess(self, nbytes: int) -> str:
        """Return why a pickled object has no room, as mpi4py's `irecv` takes it; empty if it has."""
        if not self.is_object or self.operation != "irecv":
            return ""
        room = IRECV_BYTES if self.given is None else MPI.buffer(self.given).nbytes
        if nbytes <= room:
            return ""
        return (
            f"irecv has room for {room} bytes of a pickled object, unless it is given a larger buffer: "
            f"irecv(bytearray({nbytes}), source, tag)"
        )

    def finish(self, status: MPI.Status | None) -> None:
        status = MPI.Status() if status is None else status
        if self.was_cancelled:
            status.Set_cancelled(True)
            return
        assert self.header is not None
        super().finish(status)
        status.tag = self.header.tag
        self.received = MPI.pickle.loads(self.buffer) if self.is_object else None

    def cancel(self) -> None:
        if self.request is None and self.error is None:  # else it is too late
            self.release(check=False)
            self.exchange.withdraw(self)
            self.was_cancelled = True


class BothOperation(Operation):
    """A send and a receive at once: Isendrecv."""

    def __init__(self, name: str, sending: Operation, receiving: Operation, what: str) -> None:
        super().__init__(name, receiving.place, what=what)
        self.sending, self.receiving = sending, receiving

    def advance(self) -> bool:
        return self.sending.advance() & self.receiving.advance()

    def finish(self, status: MPI.Status | None) -> None:
        self.sending.finish(None)
        self.receiving.finish(status)

    def cancel(self) -> None:
        self.receiving.cancel()


class CollectiveOperation(Operation):
    """A non-blocking collective; the ranks compare their calls before it can complete.

    The `file` of a call is the line of the program.
    """

    def __init__(
        self, exchange: Exchange, call: CallRecord, request: MPI.Request, regions: list[Region]
    ) -> None:
        super().__init__(call.operation, call.file, request)
        self.rank, self.regions = exchange.rank, regions
        nbytes = CALL_BYTES + TIME_BYTES * len(clock.times)
        self.mine = np.frombuffer(pickle.dumps((call, clock.times)).ljust(nbytes, b"\0"), np.uint8)
        self.all = np.zeros((exchange.shadow.size, nbytes), np.uint8)
        self.comparing: MPI.Request | None = exchange.shadow.Iallgather(self.mine, self.all)

    def advance(self) -> bool:
        if self.comparing is not None:
            if not RawRequest.Test(self.comparing):
                return False
            self.comparing = None
            self._compare()
        return super().advance()

    def _compare(self) -> None:
        calls: list[CallRecord] = []
        for call, times in (pickle.loads(row.tobytes()) for row in self.all):
            calls.append(call)
            clock.merge(times)
        for rank, theirs in enumerate(calls):
            if (found := mismatch(calls[self.rank], theirs)) is not None:
                self.release(check=False)
                both = [
                    f"rank {each}: {call.operation} ({call_details(call)}) at {call.file}"
                    for each, call in enumerate(calls)
                    if each in (self.rank, rank)
                ]
                raise StrictError(
                    "Collective mismatch: the ranks called non-blocking collectives with different "
                    f"{found.name.lower()}s. {'; '.join(both)}."
                )

    def finish(self, status: MPI.Status | None) -> None:
        for region in self.regions:
            # Here, writes by MPI cannot be told from writes by the program.
            region.end(check=not region.is_written)
        super().finish(status)


_freed: list[Operation] = []


def go_on(call: Operation) -> None:
    """Let a call go on whose request the program has freed; keep its buffer until it is complete."""
    if call.may_be_freed:
        call.cancel()
    _freed[:] = [each for each in [*_freed, call] if not each.advance()]


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
            _requests.pop(id(self), None)
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
        for index, request in enumerate(requests):
            if request and request.Get_status():
                return index, True, request.test(status)[1]
        return MPI.UNDEFINED, not any(requests), None

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
        return done, _ended([requests[index] for index in done], statuses)


def _test(request: Any, status: MPI.Status | None) -> tuple[bool, Any | None]:
    """Do a request's test, which is not counted."""
    if (call := _call_of(request)) is None:
        return RawRequest.test(request, status)
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

    __slots__ = ("is_freed", "operation", "place", "start", "was_started")

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

    def __bool__(self) -> bool:
        return not self.is_freed

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
        assert self.start is not None
        self.call, self.was_started = self.start(), True
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
    if isinstance(request, StrictRequest) and findings.is_own_call():
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
