"""What one rank does to carry out a schedule: a list of steps, worked out once and then only walked through.

Large transfers are cut into segments. A segment is sent on as soon as all that it waits for has been added,
while the next one is on its way, and it is received a little ahead of its turn. What a rank sends is what it
held before the round: where a round also changes these values, the change waits until they have been sent.

No rank waits for ever, whatever the schedule. It takes what arrives in the order of the rounds, so a message
of round k waits only for those of rounds before k. A change waits only for messages of its own round or
earlier, and the receives of its round that could wait for each other are all posted before the first of them
is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from labkit.schedules import Schedule, chunk_bounds

AHEAD = 2  # receives posted at a time: one segment is added while the next is on its way


class Do(Enum):
    """What a step does with its segment start … stop-1."""

    SEND = auto()  # start sending it to rank `peer`
    RECEIVE = auto()  # start receiving it from rank `peer` into its place
    RECEIVE_BESIDE = auto()  # start receiving it from rank `peer` into the temporary, from `slot` on
    WAIT = auto()  # wait for the message that was started as number `number`
    ADD = auto()  # add to it what is in the temporary
    COPY = auto()  # overwrite it by what is in the temporary


Step = tuple[Do, int, int, int, int, int]  # what to do, start, stop, peer, slot, number of the message


SEND, RECEIVE, RECEIVE_BESIDE, WAIT, ADD, COPY = Do


class Plan(NamedTuple):
    """The steps of one rank, and how many values its temporary holds. What has no WAIT, the end waits for."""

    steps: list[Step]
    messages: int
    width: int


@dataclass
class _Message:
    turn: int  # the round and, within it, the slice
    peer: int
    start: int
    stop: int
    add: bool
    number: int = -1  # in the order of starting
    slot: int = -1
    beside: bool = False
    post: int = -1  # may be started when so many messages have been taken in
    blockers: list[int] = field(default_factory=list)  # sends that have to be over before it changes values
    sent_in_turn: bool = False  # one of these is of its own turn


def plan(schedule: Schedule, rank: int, n: int, segment: int) -> Plan:
    """Return what `rank` does to carry out the schedule on n values, in segments of at most `segment`."""
    sends, receives = _messages(schedule, rank, n, segment)
    _order(sends, receives)
    return _write(sends, receives)


def _messages(schedule: Schedule, rank: int, n: int, segment: int) -> tuple[list[_Message], list[_Message]]:
    """Return what the rank sends and receives, in the order of their turns.

    Pieces longer than a segment are cut into slices, all into as many, so that a slice in one round is the
    same values as in the next; shorter ones that go together stay together, up to a segment.
    """
    ends = chunk_bounds(n, schedule.chunks)
    longest = int(np.diff(ends).max())
    slices = max(1, -(-longest // segment))
    together = max(1, segment // max(1, longest))
    cuts = (
        [one + chunk_bounds(two - one, slices) for one, two in pairwise(ends.tolist())] if slices > 1 else []
    )
    sends: list[_Message] = []
    receives: list[_Message] = []
    for number, one in enumerate(schedule):
        mine = (one.source == rank) ^ (one.dest == rank)
        columns = (
            column[mine].tolist() for column in (one.source, one.dest, one.first, one.stop, one.reduce)
        )
        for source, dest, first, stop, add in zip(*columns, strict=True):
            peer, messages = (dest, sends) if source == rank else (source, receives)
            for cut in range(slices):
                if cuts:
                    spans = [(cuts[chunk][cut], cuts[chunk][cut + 1]) for chunk in range(first, stop)]
                else:
                    spans = [(ends[i], ends[min(i + together, stop)]) for i in range(first, stop, together)]
                turn = number * slices + cut
                messages += [_Message(turn, peer, int(i), int(j), add) for i, j in spans if j > i]
    return sorted(sends, key=attrgetter("turn")), sorted(receives, key=attrgetter("turn"))


class _Spans:
    """Finds which of the messages, in the order of their rounds, touch given values before a given round."""

    def __init__(self, messages: list[_Message]) -> None:
        columns = np.array([(m.turn, m.start, m.stop) for m in messages], np.int64).reshape(-1, 3).T
        self.turn, self.start, self.stop = columns

    def touching(self, message: _Message, before: int) -> np.ndarray:
        end = np.searchsorted(self.turn, before)
        return np.flatnonzero((self.start[:end] < message.stop) & (self.stop[:end] > message.start))


def _order(sends: list[_Message], receives: list[_Message]) -> None:
    """Find out how many messages have to have been taken in before each one may be started."""
    sent, received = _Spans(sends), _Spans(receives)
    ready = 0
    for send in sends:
        earlier = received.touching(send, send.turn)
        send.post = ready = max(ready, earlier[-1] + 1 if len(earlier) else 0)
    for receive in receives:
        receive.blockers = sent.touching(receive, receive.turn + 1).tolist()
        receive.sent_in_turn = any(sends[number].turn == receive.turn for number in receive.blockers[-1:])
        receive.beside = receive.add or receive.sent_in_turn
    ready = 0
    for index, receive in enumerate(receives):
        first, stop = np.searchsorted(received.turn, [receive.turn, receive.turn + 1]).tolist()
        post = max(0, index + 1 - AHEAD)
        together = receives[first:stop]
        if len({r.peer for r in together}) > 1 and any(r.sent_in_turn for r in together):
            post = min(post, first)
        if not receive.beside:
            earlier = received.touching(receive, receive.turn)
            post = max(post, earlier[-1] + 1 if len(earlier) else 0)
            if receive.blockers:
                post = max(post, int(np.searchsorted(received.turn, sends[receive.blockers[-1]].turn + 1)))
        receive.post = ready = max(ready, post)


def _write(sends: list[_Message], receives: list[_Message]) -> Plan:
    """Write the steps down in their order."""
    steps: list[Step] = []
    numbers = 0
    over: set[int] = set()
    free: list[int] = []
    slots = 0
    width = max((r.stop - r.start for r in receives if r.beside), default=0)
    to_send, to_receive = iter(sends), iter(receives)
    send, receive = next(to_send, None), next(to_receive, None)

    def wait_for_blockers(message: _Message) -> None:
        for blocker in message.blockers:
            if blocker not in over:
                over.add(blocker)
                steps.append((WAIT, 0, 0, 0, 0, sends[blocker].number))

    for taken in range(len(receives) + 1):
        while send and send.post <= taken:
            steps.append((SEND, send.start, send.stop, send.peer, 0, numbers))
            send.number, numbers = numbers, numbers + 1
            send = next(to_send, None)
        while receive and receive.post <= taken:
            if receive.beside:
                if not free:
                    free.append(slots * width)
                    slots += 1
                receive.slot = free.pop()
                do = RECEIVE_BESIDE
            else:
                wait_for_blockers(receive)
                do = RECEIVE
            steps.append((do, receive.start, receive.stop, receive.peer, receive.slot, numbers))
            receive.number, numbers = numbers, numbers + 1
            receive = next(to_receive, None)
        if taken < len(receives):
            now = receives[taken]
            steps.append((WAIT, 0, 0, 0, 0, now.number))
            if now.beside:
                wait_for_blockers(now)
                steps.append((ADD if now.add else COPY, now.start, now.stop, 0, now.slot, 0))
                free.append(now.slot)
    return Plan(steps, numbers, slots * width)
