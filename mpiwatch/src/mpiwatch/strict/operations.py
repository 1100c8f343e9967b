"""Calls under way in strict mode: sends and receives with their headers, and non-blocking collectives."""

from __future__ import annotations

import pickle
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from mpiwatch.arguments import WHOLE, check_readable
from mpiwatch.report import CallRecord, call_details
from mpiwatch.requests import EndedError, RawRequest
from mpiwatch.signatures import Signature, misfit, of_message
from mpiwatch.snapshot import mismatch
from mpiwatch.strict.exchange import Exchange, Header, clock, lock, progress
from mpiwatch.strict.findings import Category, StrictError, add
from mpiwatch.strict.memory import Region

IRECV_BYTES = getattr(mpi4py.rc, "irecv_bufsz", 1 << 15)  # of an irecv without a buffer
# Size of a non-blocking collective's header, which all ranks exchange: of its description, whose longest part
# is a line of the program (at most 80 characters), and of each rank's time on a vector clock.
CALL_BYTES, TIME_BYTES = 1024, 10


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
        room = IRECV_BYTES if self.given is None else self.given  # mpi4py takes a number of bytes, too
        if not isinstance(room, int):
            room = MPI.buffer(room).nbytes
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
                progress()
                return False
            self.comparing = None
            self._compare()
        is_complete = super().advance()
        if not is_complete:
            progress()
        return is_complete

    def _compare(self) -> None:
        calls: list[CallRecord] = []
        for call, times in (pickle.loads(row.tobytes()) for row in self.all):
            calls.append(call)
            clock.merge(times)
        for rank, theirs in enumerate(calls):
            difference = mismatch(calls[self.rank], theirs)
            if difference is not None:
                self.release(check=False)
                both = [
                    f"rank {other_rank}: {call.operation} ({call_details(call)}) at {call.file}"
                    for other_rank, call in enumerate(calls)
                    if other_rank in (self.rank, rank)
                ]
                raise StrictError(
                    "Collective mismatch: the ranks called non-blocking collectives with different "
                    f"{difference.name.lower()}s. {'; '.join(both)}."
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
    _freed[:] = [operation for operation in [*_freed, call] if not _has_ended(operation)]


def _has_ended(operation: Operation) -> bool:
    """Return whether a call is complete; report it, and return True, if it does not fit its message."""
    try:
        return operation.advance()
    except StrictError as error:
        add(Category.CALL_MATCHING, error.reason, operation.place)
        return True
