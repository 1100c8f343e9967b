"""Running a schedule on MPI ranks: first a plan of this rank's instructions, then a generator follows it.

A plan is made once per schedule and size. Large chunks are cut into segments, so that transfers overlap:
while one segment is being added, the next one is on its way. A segment is sent on as soon as everything it
depends on has been added, and its receive is posted a little ahead of its turn. A rank sends the values that
it held before the round; if the round also changes these values, the change waits until they have been sent.

No plan can deadlock, whatever the schedule. A rank processes messages in the order of the rounds, so a
message of round k waits only for messages of earlier rounds. A change waits only for messages of its own
round or earlier ones, and the receives of one round that could wait for each other are all posted before the
plan waits for the first of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from labkit.comm import tags
from labkit.comm.counting import CountingComm
from labkit.schedules import Schedule, chunk_bounds
from mpiwatch import layers
from mpiwatch.layers import CommWrapper, Over, Pending, wait_for_pending

SEGMENT_BYTES = 768 << 10  # several fit in a core's cache; shorter segments cost more calls than they hide
AHEAD = 2  # receives posted at a time, so that one segment is added while the next is on its way


# What an instruction does: start to send the segment, the values start … stop-1 of the array, to rank `peer`;
# start to receive it from rank `peer`, or to receive it into the temporary from `slot` on; wait for message
# number `number`; add the values in the temporary to the segment; replace the segment by them.
SEND, RECEIVE, RECEIVE_TEMPORARY, WAIT, REDUCE, COPY = range(6)
Instruction = tuple[
    int, int, int, int, int, int
]  # what to do, start, stop, peer, slot, number of the message


class Plan(NamedTuple):
    """The instructions of one rank. Messages without a WAIT are waited for at the end."""

    instructions: list[Instruction]
    messages: int
    temporary: int  # the number of values that the temporary holds


@dataclass
class _Message:
    turn: int  # by round, and within a round by slice
    peer: int
    start: int
    stop: int
    reduce: bool
    number: int = -1  # in the order in which messages are started
    slot: int = -1
    in_temporary: bool = False
    post: int = -1  # how many messages have to be processed before this one is started
    blockers: list[int] = field(default_factory=list)  # the sends of values that this receive changes
    blocked_in_turn: bool = False  # one of the blockers belongs to the same turn


def _messages(schedule: Schedule, rank: int, n: int, segment: int) -> tuple[list[_Message], list[_Message]]:
    """Return the messages that the rank sends and receives, in the order of their turns.

    If chunks are longer than a segment, all are cut into the same number of slices, so that a slice has the
    same values in every round. If they are shorter, one message carries several chunks, up to a segment.
    """
    bounds = chunk_bounds(n, schedule.chunks)
    longest = int(np.diff(bounds).max())
    slices = max(1, -(-longest // segment))
    together = max(1, segment // max(1, longest))
    cuts = [a + chunk_bounds(b - a, slices) for a, b in pairwise(bounds.tolist())] if slices > 1 else []
    sends: list[_Message] = []
    receives: list[_Message] = []
    for number, round_ in enumerate(schedule):
        mine = (round_.source == rank) ^ (round_.dest == rank)
        fields = round_.source, round_.dest, round_.first, round_.stop, round_.reduce
        columns = (column[mine].tolist() for column in fields)
        for source, dest, first, stop, reduce in zip(*columns, strict=True):
            peer, messages = (dest, sends) if source == rank else (source, receives)
            for cut in range(slices):
                if cuts:
                    spans = [(cuts[chunk][cut], cuts[chunk][cut + 1]) for chunk in range(first, stop)]
                else:
                    spans = [
                        (bounds[i], bounds[min(i + together, stop)]) for i in range(first, stop, together)
                    ]
                turn = number * slices + cut
                messages += [_Message(turn, peer, int(i), int(j), reduce) for i, j in spans if j > i]
    return sorted(sends, key=attrgetter("turn")), sorted(receives, key=attrgetter("turn"))


def _spans(messages: list[_Message]) -> np.ndarray:
    """Return the turns of the messages, and their starts and stops. Shape: (3, messages)."""
    return np.array([(m.turn, m.start, m.stop) for m in messages], np.int64).reshape(-1, 3).T


def _overlapping(spans: np.ndarray, message: _Message, before: int) -> np.ndarray:
    """Return the indices of the messages before turn `before` whose values overlap with the message's."""
    _, start, stop = spans[:, : np.searchsorted(spans[0], before)]
    return np.flatnonzero((start < message.stop) & (stop > message.start))


@lru_cache(256)
def plan(schedule: Schedule, rank: int, n: int, segment: int) -> Plan:
    """Return the instructions by which `rank` carries out the schedule on n values.

    A segment has at most `segment` values, except that a message always has at least one.
    """
    sends, receives = _messages(schedule, rank, n, segment)
    _order(sends, receives)
    instructions: list[Instruction] = []
    numbers = slots = 0
    finished: set[int] = set()
    free: list[int] = []
    width = max((r.stop - r.start for r in receives if r.in_temporary), default=0)
    to_send, to_receive = deque(sends), deque(receives)

    def wait_for_blockers(message: _Message) -> None:
        for blocker in message.blockers:
            if blocker not in finished:
                finished.add(blocker)
                instructions.append((WAIT, 0, 0, 0, 0, sends[blocker].number))

    for processed in range(len(receives) + 1):
        while to_send and to_send[0].post <= processed:
            send = to_send.popleft()
            instructions.append((SEND, send.start, send.stop, send.peer, 0, numbers))
            send.number, numbers = numbers, numbers + 1
        while to_receive and to_receive[0].post <= processed:
            receive = to_receive.popleft()
            do = RECEIVE_TEMPORARY if receive.in_temporary else RECEIVE
            if not receive.in_temporary:
                wait_for_blockers(receive)
            elif free:
                receive.slot = free.pop()
            else:
                receive.slot, slots = slots * width, slots + 1
            instructions.append((do, receive.start, receive.stop, receive.peer, receive.slot, numbers))
            receive.number, numbers = numbers, numbers + 1
        if processed < len(receives):
            now = receives[processed]
            instructions.append((WAIT, 0, 0, 0, 0, now.number))
            if now.in_temporary:
                wait_for_blockers(now)
                instructions.append((REDUCE if now.reduce else COPY, now.start, now.stop, 0, now.slot, 0))
                free.append(now.slot)
    return Plan(instructions, numbers, slots * width)


def _order(sends: list[_Message], receives: list[_Message]) -> None:
    """Set after how many processed messages each message is started, and which sends block each receive."""
    sent, received = _spans(sends), _spans(receives)
    ready = 0
    for send in sends:
        earlier = _overlapping(received, send, send.turn)
        send.post = ready = max(ready, earlier[-1] + 1 if len(earlier) else 0)
    for receive in receives:
        receive.blockers = _overlapping(sent, receive, receive.turn + 1).tolist()
        receive.blocked_in_turn = any(sends[number].turn == receive.turn for number in receive.blockers[-1:])
        receive.in_temporary = receive.reduce or receive.blocked_in_turn
    ready = 0
    for index, receive in enumerate(receives):
        first, stop = np.searchsorted(received[0], [receive.turn, receive.turn + 1]).tolist()
        post = max(0, index + 1 - AHEAD)
        together = receives[first:stop]
        if len({r.peer for r in together}) > 1 and any(r.blocked_in_turn for r in together):
            post = min(post, first)
        if not receive.in_temporary:
            earlier = _overlapping(received, receive, receive.turn)
            post = max(post, earlier[-1] + 1 if len(earlier) else 0)
            if receive.blockers:
                post = max(post, int(np.searchsorted(received[0], sends[receive.blockers[-1]].turn + 1)))
        receive.post = ready = max(ready, post)


# What a generator yields where it would wait for other ranks: a test whether the wait is over, and a function
# that describes what it waits for. Whoever drives it goes on when the test has returned True.
Wait = tuple[Over, Callable[[], Pending]]
Steps = Generator[Wait, None, None]

_spare: list[np.ndarray] = []  # temporaries to be used again: the system has already given us their pages


def run(
    comm: MPI.Intracomm,
    schedule: Schedule,
    array: np.ndarray,
    op: MPI.Op = MPI.SUM,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Carry out the schedule on every rank's array, in place.

    Messages are sent from and received into the array itself; only values to be added pass through a
    temporary of about two segments. `op` has to be commutative: contributions are added in the order in which
    they arrive.

    Shapes: array (n,), contiguous and writable, the same n and dtype on all ranks; this is not checked here.

    Collective. A rank that never joins is reported: on a watched communicator as a hang report, otherwise as
    a TimeoutError on the ranks that wait, after 20 seconds.
    """
    complete(steps(comm, schedule, array, op, segment_bytes, blocking=True))


def complete(steps: Steps) -> None:
    """Run a generator to its end; wherever it yields, wait."""
    try:
        for over, pending in steps:
            wait_for_pending(over, pending)
    except BaseException:
        steps.close()
        raise


def steps(
    comm: MPI.Intracomm,
    schedule: Schedule,
    array: np.ndarray,
    op: MPI.Op = MPI.SUM,
    segment_bytes: int = SEGMENT_BYTES,
    *,
    blocking: bool = False,
) -> Steps:
    """Do what `run` does, as a generator that yields wherever `run` waits.

    `blocking`: the caller completes it at once. Then, on a watched communicator, all ranks first wait until
    each has made this call; otherwise other calls may go on at the same time, with other tags.
    """
    send, receive = _messages_of(comm, schedule, array, blocking)
    todo, messages, values = plan(schedule, comm.rank, array.size, max(1, segment_bytes // array.itemsize))
    if not messages:
        return
    size = values * array.itemsize
    spare = _spare.pop() if _spare else np.empty(0, np.uint8)
    store = spare if spare.size >= size else np.empty(size, np.uint8)
    temporary = store[:size].view(array.dtype)
    requests = [MPI.REQUEST_NULL] * messages
    tag = (tags.SCHEDULE if blocking else tags.STARTED) + layers.attempt() % 1000
    plain = op == MPI.SUM and array.dtype.kind in "iufc"
    try:
        for do, start, stop, peer, slot, number in todo:
            if do == SEND:
                requests[number] = send(array[start:stop], peer, tag)
            elif do == WAIT:
                arrived = requests[number].Test
                if not arrived():
                    yield arrived, partial(_pending, comm, schedule, todo, number, requests[number])
            elif do == REDUCE:
                _add(array[start:stop], temporary[slot : slot + stop - start], op, plain)
            elif do == RECEIVE:
                requests[number] = receive(array[start:stop], peer, tag)
            elif do == RECEIVE_TEMPORARY:
                requests[number] = receive(temporary[slot : slot + stop - start], peer, tag)
            else:
                array[start:stop] = temporary[slot : slot + stop - start]
        if not MPI.Request.Testall(requests):
            for number, request in enumerate(requests):  # one by one: each has the whole deadline
                yield request.Test, partial(_pending, comm, schedule, todo, number, request)
    except BaseException:  # an interrupt, say: no message may arrive in memory that is the caller's again
        _cancel(requests)
        raise
    _spare.append(store)


def _messages_of(
    comm: MPI.Intracomm, schedule: Schedule, array: np.ndarray, blocking: bool
) -> tuple[Callable[..., MPI.Request], Callable[..., MPI.Request]]:
    """Return the methods that start a send and a receive."""
    if not isinstance(comm, CommWrapper):
        return comm.Isend, comm.Irecv
    if blocking:
        comm._before_schedule(schedule.name, array)
    send, receive = comm._schedule_messages()
    return (comm.counts.of_schedule(schedule.name, send) if isinstance(comm, CountingComm) else send), receive


def _add(total: np.ndarray, received: np.ndarray, op: MPI.Op, plain: bool) -> None:
    if plain:
        np.add(total, received, total)  # up to four times as fast as MPI libraries are
    else:
        op.Reduce_local(received, total)


def _cancel(requests: list[MPI.Request]) -> None:
    if MPI.Is_finalized():  # a generator that was never finished is closed when the interpreter ends
        return
    for request in requests:
        if request != MPI.REQUEST_NULL:
            request.Cancel()


def _pending(
    comm: MPI.Intracomm, schedule: Schedule, todo: list[Instruction], message: int, request: MPI.Request
) -> Pending:
    """Return which peer this message comes from or goes to."""
    do, peer = next(
        (do, peer)
        for do, _, _, peer, _, number in todo
        if number == message and do in (SEND, RECEIVE, RECEIVE_TEMPORARY)
    )
    receives, sends = ([], [peer]) if do == SEND else ([peer], [])
    return Pending(comm, schedule.name, receives, sends, request=request)
