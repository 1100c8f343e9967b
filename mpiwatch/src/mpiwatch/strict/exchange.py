"""Headers describe the messages of strict mode, and match them in Python.

A header travels before each message. Headers and messages use a duplicate of the communicator. A header
carries the tag of the caller; the message itself has a number as its tag, so that the receive of a matched
header can never take another message. Headers of one rank arrive in the order in which it sent them, so
messages match as MPI prescribes.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mpi4py import MPI

from mpiwatch.library_calls import RawIntracomm
from mpiwatch.signatures import Signature
from mpiwatch.strict.findings import Category, add

HEADER_TAG = 0
MOST_UNDER_WAY = 1 << 14  # how many messages two ranks can have under way at once
HEADERS_TESTED = 64  # kept before sent headers are dropped

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


class Receive(Protocol):
    """A receive, as far as an exchange matches it with a header: see `ReceiveOperation`."""

    operation: str
    place: str
    source: int
    tag: int
    header: Header | None
    matched_at: int  # on this rank's clock

    def start(self) -> None:
        """Begin to receive the message itself."""


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
        self.posted: list[Receive] = []
        self.matched: list[Receive] = []  # their messages have not been requested
        self.wildcards: list[Receive] = []  # receives from any source that have matched

    def close(self) -> None:
        """Report the messages that were never received, and free the duplicate. Collective."""
        self.report_leftovers()
        exchanges.remove(self)
        self.discard()
        self.shadow.Free()

    def next_number(self, dest: int) -> int:
        """Return the tag of the next message to a rank."""
        self.numbers[dest] += 1
        return 1 + self.numbers[dest] % MOST_UNDER_WAY

    def announce(self, header: Header, dest: int) -> None:
        """Send a header."""
        clock.tick()
        header.clock = list(clock.times)
        text = pickle.dumps(header)
        self.headers.append((self.shadow.Isend([text, MPI.BYTE], dest, HEADER_TAG), text))
        if len(self.headers) > HEADERS_TESTED:
            self.headers = [(request, content) for request, content in self.headers if not request.Test()]
        headers_sent[self.members[dest]] += 1

    def progress(self) -> None:
        """Read headers that have arrived, and match them with receives."""
        status = MPI.Status()
        with lock:
            while True:
                message = self.shadow.Improbe(MPI.ANY_SOURCE, HEADER_TAG, status)
                if message is None:
                    break
                text = bytearray(status.Get_count(MPI.BYTE))
                message.Recv([text, MPI.BYTE])
                header: Header = pickle.loads(text)
                header.source = status.source
                headers_received[self.members[header.source]] += 1
                receive = next(
                    (posted for posted in self.posted if header.fits(posted.source, posted.tag)), None
                )
                if receive is None:
                    self.unexpected.append(header)
                else:
                    self.posted.remove(receive)
                    self._match(receive, header)

    def post(self, receive: Receive) -> None:
        """Add a receive; match it with the first message that fits it."""
        with lock:
            self.progress()
            header = self.find(receive.source, receive.tag)
            if header is None:
                self.posted.append(receive)
            else:
                self.unexpected.remove(header)
                self._match(receive, header)

    def withdraw(self, receive: Receive) -> None:
        """Remove a receive whose message has not been requested; another receive may take the message."""
        with lock:
            for receives in self.posted, self.matched, self.wildcards:
                if receive in receives:
                    receives.remove(receive)
            if receive.header is not None:
                self.unexpected.insert(0, receive.header)
                receive.header = None

    def find(self, source: int, tag: int) -> Header | None:
        """Return the first unmatched header that has arrived and fits."""
        return next((header for header in self.unexpected if header.fits(source, tag)), None)

    def _match(self, receive: Receive, header: Header) -> None:
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
