"""Recordings written by hand, in milliseconds: what the ranks of a cell might have done."""

from __future__ import annotations

from typing import Any

from mpiwatch.trace import Event, Kind, RankLog, Trace, Values, merge

MS = 1e-3


class Rank:
    """What a rank did; each method adds a call."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.events: list[Event] = []
        self.comm = f"world#0:{','.join(map(str, range(size)))}"

    def add(self, kind: Kind, operation: str, begin: float, end: float | None, **more: Any) -> int:
        """Add an event; times are in ms, an `end` of None stands for never. Return its number."""
        fields = {"peer": -1, "tag": 0, "root": -1, "nbytes": -1, "request": 0, "line": "", "values": None}
        fields |= {"has_failed": False, "number": len(self.events) + 1, "comm": self.comm} | more
        end_s = None if end is None else end * MS
        event = Event(
            rank=self.rank, kind=kind, operation=operation, begin_s=begin * MS, end_s=end_s, **fields
        )
        self.events.append(event)
        return event.number

    def send(
        self, dest: int, begin: float, end: float | None, nbytes: int = 800, line: int = 5, **more: Any
    ) -> None:
        place = f"cell line {line}: `comm.Send(part, right)`"
        values = Values(nbytes // 8, (1.0,) * min(16, nbytes // 8))
        self.add(Kind.SEND, "Send", begin, end, peer=dest, nbytes=nbytes, line=place, values=values, **more)

    def receive(
        self, source: int, begin: float, end: float | None, nbytes: int = 800, line: int = 6, **more: Any
    ) -> None:
        place = f"cell line {line}: `comm.Recv(got, left)`"
        self.add(Kind.RECEIVE, "Recv", begin, end, peer=source, nbytes=nbytes, line=place, **more)

    def request(self, source: int, begin: float, wait: float, end: float, nbytes: int = 800) -> None:
        """Add an Irecv at `begin` and its Wait, which lasts from `wait` to `end`."""
        number = len(self.events) + 1
        line = "cell line 4: `request = comm.Irecv(got, left)`"
        self.add(Kind.START_RECEIVE, "Irecv", begin, begin + 0.01, peer=source, request=number, line=line)
        line = "cell line 7: `request.Wait()`"
        waited = self.add(Kind.WAIT, "Wait", wait, end, peer=source, request=number, line=line)
        more = {"peer": source, "nbytes": nbytes, "number": waited, "request": number}
        self.add(Kind.COMPLETE, "Wait", end, end, line=line, **more)

    def collective(self, begin: float, end: float | None, operation: str = "Allreduce") -> None:
        line = f"cell line 9: `comm.{operation}(part, total)`"
        self.add(Kind.COLLECTIVE, operation, begin, end, nbytes=80, line=line)

    def log(self, end: float, lost: int = 0) -> RankLog:
        return RankLog(self.rank, self.size, 0.0, end * MS, 0.0, 0.0001, lost, self.events)


def ranks(size: int) -> list[Rank]:
    return [Rank(rank, size) for rank in range(size)]


def trace_of(those: list[Rank], end: float = 100.0) -> Trace:
    return merge(rank.log(end) for rank in those)


def ring(size: int = 4, late: int = 3) -> Trace:
    """Return a ring of blocking sends and requests; one rank computes 50 ms, the others 10 ms."""
    those = ranks(size)
    for rank in those:
        begin = 50.0 if rank.rank == late else 10.0
        sender = 50.0 if (rank.rank - 1) % size == late else 10.0
        rank.request((rank.rank - 1) % size, begin, begin + 2, max(begin, sender) + 3)
        rank.send((rank.rank + 1) % size, begin + 0.5, begin + 1)
    return trace_of(those)


def straggler(size: int = 4, late: int = 3) -> Trace:
    """Return an Allreduce to which one rank comes 80 ms later than the others."""
    those = ranks(size)
    for rank in those:
        rank.collective(90.0 if rank.rank == late else 10.0, 91.0)
    return trace_of(those)


def deadlock(size: int = 4) -> Trace:
    """Return ranks that all wait in a Send."""
    those = ranks(size)
    for rank in those:
        rank.send((rank.rank + 1) % size, 10.0, None, nbytes=8 << 20)
    return trace_of(those)


def missing_rank(size: int = 4, missing: int = 2) -> Trace:
    """Return a Barrier that one rank never calls."""
    those = ranks(size)
    for rank in those:
        if rank.rank != missing:
            rank.collective(10.0, None, "Barrier")
    return trace_of(those)


def slow_link(size: int = 4, slow: tuple[int, int] = (1, 2), fast_messages: int = 0) -> Trace:
    """Return two messages on each link of a ring, after fast ones; one link takes ten times as long."""
    those = ranks(size)
    for number in range(fast_messages + 2):
        for rank in those:
            right = (rank.rank + 1) % size
            is_slow = (rank.rank, right) == slow and number >= fast_messages
            took = 20.0 if is_slow else 2.0
            begin = 5.0 + 40 * number
            rank.send(right, begin, begin + took, nbytes=1 << 20)
            those[right].receive(rank.rank, begin, begin + took, nbytes=1 << 20)
    return trace_of(those)


def many(size: int = 8, messages: int = 200) -> Trace:
    """Return many messages of many ranks."""
    those = ranks(size)
    for number in range(messages):
        source, dest = number % size, (number * 3 + 1) % size
        begin = 1.0 + number * 0.4
        if source != dest:
            those[source].send(dest, begin, begin + 0.1)
            those[dest].receive(source, begin + 0.05, begin + 0.3)
    return trace_of(those)
