"""Match messages in Python: a header that describes the message travels before it.

Headers and messages use a duplicate of the communicator. A header carries the tag of the caller; the message
itself has a number as its tag, so that the receive of a matched header can never take another message.
Headers of one rank arrive in the order in which it sent them, so messages match as MPI prescribes.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from mpiwatch.strict.findings import Category, Finding, add
from mpiwatch.strict.signatures import Signature

HEADER_TAG = 0
lock = threading.RLock()  # held by a thread that reads or writes what the exchanges keep
NUMBERS = 1 << 14  # how many messages two ranks can have under way at once
HEADERS_TESTED = 64  # kept before sent headers are dropped


@dataclass
class Header:
    """The description of a message by its sender. `clock`: see Clock."""

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


@dataclass(eq=False)
class Posted:
    """A receive of the program; `header` belongs to the message that it has matched."""

    operation: str
    place: str
    source: int
    tag: int
    header: Header | None = None
    matched_at: int = 0  # on this rank's clock
    start: Callable[[], object] = int  # begin to receive the message itself

    def fits(self, header: Header) -> bool:
        """Tell whether this receive may take a message."""
        return self.source in (MPI.ANY_SOURCE, header.source) and self.tag in (MPI.ANY_TAG, header.tag)


class Clock:
    """A vector clock: for each rank of the world, how many of its steps happened before now."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.times = rank, [0] * size

    def tick(self) -> int:
        """Count a step of this rank; return its number."""
        self.times[self.rank] += 1
        return self.times[self.rank]

    def merge(self, times: list[int]) -> None:
        """Note that all steps on another rank's clock happened before now."""
        self.times = list(map(max, self.times, times))


@dataclass
class Traffic:
    """How many headers this process has sent to and received from each rank of the world."""

    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)


class Exchange:
    """The headers of one communicator. `members`: ranks of the world, by rank in the communicator."""

    def __init__(self, comm: MPI.Intracomm, members: list[int], clock: Clock, traffic: Traffic) -> None:
        self.shadow = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        self.rank, self.members, self.clock, self.traffic = comm.rank, members, clock, traffic
        self.headers: list[tuple[MPI.Request, bytes]] = []  # headers under way
        self.forget()
        exchanges.append(self)

    def forget(self) -> None:
        """Forget all messages: none of them will arrive any more."""
        self.numbers = [0] * len(self.members)
        self.unexpected: list[Header] = []
        self.posted: list[Posted] = []
        self.matched: list[Posted] = []  # receives whose message has not been requested
        self.wildcards: list[Posted] = []  # receives from any source that have matched
        # What this rank sends to each rank and expects from each one, in a collective that is about to begin.
        self.amounts: tuple[dict[int, Signature], dict[int, Signature]] | None = None

    def close(self) -> None:
        """Free the duplicate. Collective."""
        exchanges.remove(self)
        self.discard()
        self.shadow.Free()

    def next_number(self, dest: int) -> int:
        """Return the tag of the next message to a rank."""
        self.numbers[dest] += 1
        return 1 + self.numbers[dest] % NUMBERS

    def announce(self, header: Header, dest: int) -> None:
        """Send a header."""
        self.clock.tick()
        header.clock = list(self.clock.times)
        text = pickle.dumps(header)
        self.headers.append((self.shadow.Isend([text, MPI.BYTE], dest, HEADER_TAG), text))
        if len(self.headers) > HEADERS_TESTED:
            self.headers = [(request, kept) for request, kept in self.headers if not request.Test()]
        world_rank = self.members[dest]
        self.traffic.sent[world_rank] = self.traffic.sent.get(world_rank, 0) + 1

    def progress(self) -> None:
        """Read headers that have arrived, and match them with receives."""
        with lock:
            self._progress()

    def _progress(self) -> None:
        status = MPI.Status()
        while (found := self.shadow.Improbe(MPI.ANY_SOURCE, HEADER_TAG, status)) is not None:
            text = bytearray(status.Get_count(MPI.BYTE))
            found.Recv([text, MPI.BYTE])
            header: Header = pickle.loads(text)
            header.source = status.source
            world_rank = self.members[header.source]
            self.traffic.received[world_rank] = self.traffic.received.get(world_rank, 0) + 1
            receive = next((each for each in self.posted if each.fits(header)), None)
            if receive is None:
                self.unexpected.append(header)
            else:
                self.posted.remove(receive)
                self._match(receive, header)

    def post(self, receive: Posted) -> None:
        """Add a receive; match it with the first message that fits it."""
        with lock:
            self.progress()
            header = self.find(receive.source, receive.tag)
            if header is None:
                self.posted.append(receive)
            else:
                self.unexpected.remove(header)
                self._match(receive, header)

    def withdraw(self, receive: Posted) -> None:
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
        wanted = Posted("", "", source, tag)
        return next((header for header in self.unexpected if wanted.fits(header)), None)

    def _match(self, receive: Posted, header: Header) -> None:
        receive.header = header
        self.matched.append(receive)
        self._find_races(receive, header)
        if receive.source == MPI.ANY_SOURCE:
            receive.matched_at = self.clock.tick()
            self.wildcards.append(receive)
        self.clock.merge(header.clock)
        self.clock.tick()

    def _find_races(self, receive: Posted, header: Header) -> None:
        """Report a receive from any source that could have taken this message instead.

        Repeated receives from any source with the same tag, as in a loop of a master, are no error:
        each takes whichever message comes.
        """
        for earlier in self.wildcards:
            taken = earlier.header
            if (
                taken is not None
                and taken.source != header.source
                and earlier.fits(header)
                and header.clock[self.clock.rank] < earlier.matched_at
                and (receive.source, receive.tag) != (earlier.source, earlier.tag)
            ):
                self._report_race(earlier, header)

    def _report_race(self, earlier: Posted, header: Header) -> None:
        add(
            Finding(
                Category.MESSAGE_RACE,
                f"{earlier.operation} from any source took the {earlier.header}, but could have taken the "
                f"{header}: the order of arrival decides",
                earlier.place,
                self.clock.rank,
            )
        )

    def leftovers(self) -> list[Header]:
        """Return the headers of messages that were never received; report those that are part of a race."""
        self.progress()
        for header in self.unexpected:
            self._find_races(Posted("", "", header.source, header.tag), header)
        return list(self.unexpected)

    def discard(self) -> None:
        """Receive messages that no receive has taken, so that their senders can end."""
        for header in self.unexpected:
            self.shadow.Recv([bytearray(header.signature.nbytes), MPI.BYTE], header.source, header.number)
        self.unexpected, self.posted, self.matched, self.wildcards = [], [], [], []


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
