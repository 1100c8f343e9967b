"""Calls under way in strict mode: messages and non-blocking collectives, each with its headers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch.strict import regions
from mpiwatch.strict.exchange import Exchange, Header, Posted, lock, progress
from mpiwatch.strict.findings import StrictError
from mpiwatch.strict.signatures import Signature, misfit, of_message, of_object
from mpiwatch.under_way import RawRequest

# Size of a collective's header, which all ranks exchange: of the call, and of each time in its clock.
CALL_BYTES, TIME_BYTES = 1024, 10


class Operation:
    """A call under way. `advance` returns whether it is complete; `finish` ends it. Both return at once."""

    operation = ""
    what = ""  # the operation, its peer and its tag
    place = ""
    may_be_freed = False  # whether a program may free its request while it is under way
    was_cancelled = False
    is_known_complete = False  # to the program, by Get_status

    def advance(self) -> bool:
        """Make progress without waiting; return whether the call is complete."""
        raise NotImplementedError

    def finish(self, status: MPI.Status | None) -> Any:
        """End the call; return the object that it has received, if any."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Give up a receive that has not matched; a send goes on, but its buffer is no longer checked."""


class SendOperation(Operation):
    """A send, preceded by its header. `mode`: the method that sends the message itself, such as Issend."""

    may_be_freed = True

    def __init__(  # noqa: PLR0917
        self, exchange: Exchange, operation: str, mode: str, message: Any, dest: int, tag: int, place: str
    ) -> None:
        self.operation, self.place = operation, place
        is_object = operation[0].islower()
        self.data = MPI.pickle.dumps(message) if is_object else message  # kept until it is sent
        signature = of_object(self.data) if is_object else of_message(message)
        buffer = [self.data, MPI.BYTE] if is_object else message
        with lock:
            number = exchange.next_number(dest)
            self.request: MPI.Request = getattr(exchange.shadow, mode)(buffer, dest, number)
            exchange.announce(Header(number, tag, operation, place, signature, []), dest)
        self.region = (
            None if is_object else regions.begin(operation, place, message, False, exchange.clock.rank)
        )

    def advance(self) -> bool:
        if RawRequest.Get_status(self.request):
            return True
        progress()
        return bool(RawRequest.Get_status(self.request))

    def finish(self, status: MPI.Status | None) -> None:
        RawRequest.Wait(self.request, status)
        regions.end(self.region)

    def cancel(self) -> None:
        regions.end(self.region, check=False)


class ReceiveOperation(Operation):
    """A receive. The message itself is received when its header has matched and the caller waits."""

    def __init__(  # noqa: PLR0917
        self, exchange: Exchange, operation: str, buffer: Any, source: int, tag: int, place: str
    ) -> None:
        self.exchange, self.operation, self.place, self.buffer = exchange, operation, place, buffer
        self.is_object = operation[0].islower()
        if not self.is_object:
            RawRequest.Wait(exchange.shadow.Irecv(buffer, MPI.PROC_NULL))  # raises an error for a bad buffer
        self.signature = Signature(0, "object", 0) if self.is_object else of_message(buffer)
        self.region = (
            None if self.is_object else regions.begin(operation, place, buffer, True, exchange.clock.rank)
        )
        if self.region is not None:
            self.buffer = self.region.message  # with datatypes of its own
        self.posted = Posted(operation, place, source, tag, start=self._start)
        self.request: MPI.Request | None = None
        self.error: StrictError | None = None
        self.has_landed = False
        exchange.post(self.posted)

    def advance(self) -> bool:
        if self.was_cancelled:
            return True
        header = self.posted.header
        if header is None:
            progress()
            header = self.posted.header
        if header is None:
            return False
        if self.request is None:
            self._start()
        if self.error is not None:
            raise self.error
        assert self.request is not None
        if not RawRequest.Get_status(self.request):
            return False
        if not self.has_landed:
            self.has_landed = True
            if self.region is not None:
                self.region.remember()
        return True

    def _start(self) -> None:
        with lock:
            self._receive()

    def _receive(self) -> None:
        header = self.posted.header
        if header is None or self.request is not None or self.error is not None:
            return
        if self.region is not None:
            self.region.check()
        wrong = misfit(header.signature, self.signature)
        if wrong:
            regions.end(self.region, check=False)
            scratch = bytearray(header.signature.nbytes)
            self.exchange.shadow.Recv([scratch, MPI.BYTE], header.source, header.number)
            expects = "" if self.is_object else f" for {self.signature}"
            self.error = StrictError(
                f"rank {self.exchange.rank}: {self.operation}{expects} ({self.place}) does not fit the "
                f"message that arrived: {header}. Reason: {wrong}."
            )
            return
        if self.is_object:
            self.buffer = bytearray(header.signature.nbytes)
        buffer = [self.buffer, MPI.BYTE] if self.is_object else self.buffer
        self.request = self.exchange.shadow.Irecv(buffer, header.source, header.number)

    def finish(self, status: MPI.Status | None) -> Any:
        status = MPI.Status() if status is None else status
        if self.was_cancelled:
            status.Set_cancelled(True)
            return None
        assert self.request is not None and self.posted.header is not None
        RawRequest.Wait(self.request, status)
        status.tag = self.posted.header.tag
        regions.end(self.region)
        return MPI.pickle.loads(self.buffer) if self.is_object else None

    def cancel(self) -> None:
        if self.request is None and self.error is None:  # else it is too late
            regions.end(self.region, check=False)
            self.exchange.withdraw(self.posted)
            self.was_cancelled = True


class BothOperation(Operation):
    """A send and a receive at once: Isendrecv."""

    def __init__(self, sending: Operation, receiving: Operation) -> None:
        self.sending, self.receiving = sending, receiving
        self.operation, self.place = receiving.operation, receiving.place

    def advance(self) -> bool:
        return self.sending.advance() & self.receiving.advance()

    def finish(self, status: MPI.Status | None) -> Any:
        self.sending.finish(None)
        return self.receiving.finish(status)

    def cancel(self) -> None:
        self.receiving.cancel()


class CollectiveOperation(Operation):
    """A non-blocking collective; the ranks compare their calls before it can complete."""

    def __init__(  # noqa: PLR0917
        self,
        exchange: Exchange,
        operation: str,
        call: tuple[Any, ...],
        request: MPI.Request,
        buffers: list[tuple[Any, bool]],
        place: str,
    ) -> None:
        self.exchange, self.operation, self.place, self.request = exchange, operation, place, request
        times = exchange.clock.times
        nbytes = CALL_BYTES + TIME_BYTES * len(times)
        text = pickle.dumps((operation, *call, place, times))
        self.mine = np.frombuffer(text.ljust(nbytes, b"\0"), np.uint8).copy()
        self.all = np.zeros((exchange.shadow.size, nbytes), np.uint8)
        self.comparing: MPI.Request | None = exchange.shadow.Iallgather(self.mine, self.all)
        self.regions = [
            regions.begin(operation, place, buffer, is_written, exchange.clock.rank)
            for buffer, is_written in buffers
        ]

    def advance(self) -> bool:
        if self.comparing is not None:
            if not RawRequest.Test(self.comparing):
                return False
            self.comparing = None
            self._compare()
        return bool(RawRequest.Get_status(self.request))

    def _compare(self) -> None:
        calls = [pickle.loads(row.tobytes()) for row in self.all]
        for *_, times in calls:
            self.exchange.clock.merge(times)
        mine = calls[self.exchange.rank]
        for rank, theirs in enumerate(calls):
            for what, ours, others in zip(
                ("operations", "roots", "counts", "dtypes", "reductions"), mine, theirs, strict=False
            ):
                if ours != others and None not in (ours, others):
                    for region in self.regions:
                        regions.end(region, check=False)
                    first, second = sorted([(self.exchange.rank, mine), (rank, theirs)], key=lambda x: x[0])
                    raise StrictError(
                        f"Collective mismatch: the ranks called non-blocking collectives with different "
                        f"{what}. {_call(*first)}; {_call(*second)}."
                    )

    def finish(self, status: MPI.Status | None) -> None:
        RawRequest.Wait(self.request, status)
        for region in self.regions:
            # Here, writes by MPI cannot be told from writes by the program.
            regions.end(region, check=not region.is_written)


def _call(rank: int, call: tuple[Any, ...]) -> str:
    operation, root, count, dtype, reduction, place, _ = call
    details = [
        "" if count is None else f"{count} {dtype or 'elements'}",
        reduction or "",
        "" if root is None else f"root {root}",
    ]
    return f"rank {rank}: {operation} ({', '.join(filter(None, details))}) at {place}"


class PlainOperation(Operation):
    """A request of the MPI library; only the line that made it is known."""

    def __init__(self, operation: str, request: MPI.Request, place: str) -> None:
        self.operation, self.request, self.place = operation, request, place

    def advance(self) -> bool:
        return bool(RawRequest.Get_status(self.request))

    def finish(self, status: MPI.Status | None) -> None:
        RawRequest.Wait(self.request, status)


Starter = Callable[[], Operation]

_freed: list[Operation] = []


def go_on(call: Operation) -> None:
    """Let a call go on whose request the program has freed; keep its buffer until it is complete."""
    if call.may_be_freed:
        call.cancel()
    _freed[:] = [each for each in [*_freed, call] if not each.advance()]
