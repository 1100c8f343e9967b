"""From messages back to a schedule: what a cell sent, as rounds of transfers, verified, counted and priced.

In a round, a rank sends one message at most and receives one at most. A message belongs to the first round
after those of the messages that its sender had sent or received before, and that its receiver had taken
before.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np

from labkit.replay.parts import EXPECTED
from labkit.schedules import (
    CostModel,
    Round,
    Schedule,
    ScheduleError,
    chunk_bounds,
    copy_round,
    cost,
    merge_rounds,
    reduce_round,
    ring_allgather,
    ring_allreduce,
    ring_reduce,
    ring_reduce_scatter,
    tree_broadcast,
    verify,
)
from labkit.schedules.schedule import CollectiveName
from labkit.text import counted
from labkit.units import approx_time
from mpiwatch.trace import Message, Trace, members_of

ITEM_BYTES = 4  # a schedule is of float32 values
MOST_SIZES = 4  # of arrays, of which one may be that of a schedule
GIGABIT = CostModel(50e-6, 8e-9)  # one host's link of 1 Gbit/s, with a latency of 50 µs

# In the order in which they are tried (a ring reduce is a reduce-scatter, too), with their names and rivals.
COLLECTIVES: tuple[CollectiveName, ...] = ("allreduce", "reduce", "reduce-scatter", "allgather", "broadcast")
NAMES: dict[CollectiveName, str] = {
    "allreduce": "an all-reduce",
    "reduce-scatter": "a reduce-scatter",
    "allgather": "an all-gather",
    "reduce": "a reduce",
    "broadcast": "a broadcast",
}
SUMS = "allreduce", "reduce-scatter", "reduce"
PER_RANK = "allgather", "reduce-scatter"  # they need one chunk for each rank
RIVALS = {
    "allreduce": ring_allreduce,
    "reduce-scatter": ring_reduce_scatter,
    "allgather": ring_allgather,
    "reduce": ring_reduce,
    "broadcast": tree_broadcast,
}
WORDS_FOR = {
    "ring_allreduce": "ring all-reduce",
    "ring_reduce_scatter": "ring reduce-scatter",
    "ring_allgather": "ring all-gather",
    "ring_reduce": "ring reduce",
    "tree_broadcast": "tree broadcast",
}


class NoRoundsError(ValueError):
    """Messages do not fall into rounds; the text says why."""


def schedule_of(trace: Trace) -> tuple[Schedule, int]:
    """Return what the ranks of a recording sent, as a schedule, and the bytes of the array that it is for.

    If the messages are parts of one array that each rank has, the transfers have these chunks, and `verify`
    says whether they are a collective: see `what_is_computed`. A receive into that array copies, a receive
    beside it is taken as added. Otherwise, each transfer copies the first chunks; then the schedule can only
    be counted, priced and simulated. Raise NoRoundsError if there are no rounds.
    """
    messages = sent_values(trace)
    _check(messages)
    by_round = numbered(messages)
    places = what_is_computed(trace).places
    if places is not None:
        return _schedule(trace, by_round, places.cut_evenly()), places.nbytes
    unit = 0
    for message in messages:
        unit = gcd(unit, message.nbytes)
    chunks = max(message.nbytes for message in messages) // unit
    number_of = _numbers_of_ranks(trace, messages)
    rounds = [
        merge_rounds(*(_transfer(message, unit, number_of) for message in by_round[number]))
        for number in sorted(by_round)
    ]
    return _of_rounds(len(number_of), "broadcast", chunks, rounds), chunks * unit


def _of_rounds(p: int, collective: CollectiveName, chunks: int, rounds: list[Round]) -> Schedule:
    def each_round() -> Iterator[Round]:
        yield from rounds

    return Schedule("the messages of a cell", collective, p, chunks, each_round)


def _transfer(message: Message, unit: int, number_of: dict[int, int]) -> Round:
    source, dest = number_of[message.source], number_of[message.dest]
    return copy_round(source, dest, 0, np.array(message.nbytes // unit))


def _numbers_of_ranks(trace: Trace, messages: Sequence[Message]) -> dict[int, int]:
    """Return the rank in a schedule by that in the world: that in a communicator which has all messages."""
    names = {message.send.comm for message in messages if message.send is not None}
    members = members_of(names.pop()) if len(names) == 1 else ()
    return {rank: number for number, rank in enumerate(members or range(trace.size))}


def sent_values(trace: Trace) -> list[Message]:
    """Return the messages that were sent, without those of empty chunks."""
    return [message for message in trace.messages if message.send is not None and message.nbytes != 0]


# Which chunks the messages hold


class Places(NamedTuple):
    """Where the messages stand in the array that each rank has, of `nbytes` bytes, cut at `bounds`.

    `first`: where each message begins, in bytes; `added`: whether its receiver adds it, None if that is not
    known; both by the message's number in the recording. `is_sent`: each message is sent from this array.
    """

    nbytes: int
    bounds: list[int]
    first: dict[int, int]
    added: dict[int, bool | None]
    is_sent: bool

    def cut_evenly(self) -> Places:
        """Return the same places in an array that is cut as a schedule cuts it, so that bytes are exact."""
        chunks = len(self.bounds) - 1
        cuts = chunk_bounds(self.nbytes // ITEM_BYTES, chunks) * ITEM_BYTES
        if self.bounds == cuts.tolist():
            return self
        unit = gcd(*self.bounds)
        return self._replace(bounds=list(range(0, self.nbytes + 1, unit)))


def readings_of(messages: Sequence[Message]) -> list[Places]:
    """Return the ways in which messages are parts of one array that each rank has, the largest array first.

    There may be several: the array that is sent, and one that is received into. A temporary of labkit's
    algorithms may be larger than the array.
    """
    sizes = {event.whole for message in messages for event in (message.send, message.receive) if event}
    readings = (_places_in(messages, nbytes) for nbytes in sorted(sizes, reverse=True)[:MOST_SIZES])
    return [places for places in readings if places is not None]


def _places_in(messages: Sequence[Message], nbytes: int) -> Places | None:
    """Return where messages stand in an array of so many bytes; None if that is not known of each."""
    first: dict[int, int] = {}
    for number, message in enumerate(messages):
        known = [e.offset for e in (message.send, message.receive) if e is not None and e.whole == nbytes]
        if not known or known[0] + message.nbytes > nbytes:
            return None
        first[number] = known[0]
    arrays = _arrays(messages, nbytes)
    added = {number: _is_added(message, arrays, nbytes) for number, message in enumerate(messages)}
    ends = {first[number] + message.nbytes for number, message in enumerate(messages)}
    bounds = sorted({0, nbytes, *first.values(), *ends})
    is_sent = all(message.send is not None and message.send.whole == nbytes for message in messages)
    return Places(nbytes, bounds, first, added, is_sent)


def _arrays(messages: Sequence[Message], nbytes: int) -> dict[int, int]:
    """Return where the array of each rank is in its memory: the one from which it has sent most messages."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for message in messages:
        send = message.send
        if send is not None and send.whole == nbytes:
            counts[message.source][send.address - send.offset] += 1
    return {rank: of_rank.most_common(1)[0][0] for rank, of_rank in counts.items()}


def _is_added(message: Message, arrays: dict[int, int], nbytes: int) -> bool | None:
    """Return whether a message was received beside the array of its receiver, and not into it.

    None if the receiver has sent nothing, so that its array is not known.
    """
    receive = message.receive
    assert receive is not None
    if message.dest not in arrays:
        return None
    return receive.whole != nbytes or receive.address - receive.offset != arrays[message.dest]


def _schedule(
    trace: Trace, by_round: dict[int, list[Message]], places: Places, name: CollectiveName = "allreduce"
) -> Schedule:
    """Return the schedule of messages with known places, as the collective of this name."""
    messages = sent_values(trace)
    number_of = {id(message): number for number, message in enumerate(messages)}
    ranks = _numbers_of_ranks(trace, messages)
    chunk_at = {place: chunk for chunk, place in enumerate(places.bounds)}
    rounds = []
    for number in sorted(by_round):
        transfers = []
        for message in by_round[number]:
            index = number_of[id(message)]
            first, stop = chunk_at[places.first[index]], chunk_at[places.first[index] + message.nbytes]
            is_added = places.added[index]
            if is_added is None:
                is_added = name in SUMS
            make = reduce_round if is_added else copy_round
            source, dest = ranks[message.source], ranks[message.dest]
            transfers.append(make(source, dest, first, stop))
        rounds.append(merge_rounds(*transfers))
    return _of_rounds(len(ranks), name, len(places.bounds) - 1, rounds)


class Computed(NamedTuple):
    """What messages compute: the schedule of the collective that they are, or what is wrong with them.

    `schedule` and `places`: None if it is not known which chunks they hold. `why`: empty if they are the
    collective.
    """

    schedule: Schedule | None
    places: Places | None
    why: str


def what_is_computed(trace: Trace, wanted: CollectiveName | None = None) -> Computed:
    """Return which collective the messages of a recording are.

    If they are none, `why` says what is missing for the `wanted` one, or for an all-reduce. Raise
    NoRoundsError if they do not fall into rounds.
    """
    messages = sent_values(trace)
    _check(messages)
    by_round = numbered(messages)
    readings = readings_of(messages)
    if not readings:
        return Computed(None, None, "it is not known which part of an array each of them holds")
    for places in readings:
        for name in COLLECTIVES if wanted is None else (wanted,):
            schedule = _schedule(trace, by_round, places, name)
            if not _why_not(schedule):
                return Computed(schedule, places, "")
    places = next((reading for reading in readings if reading.is_sent), readings[0])
    schedule = _schedule(trace, by_round, places, wanted or COLLECTIVES[0])
    if schedule.collective in PER_RANK and schedule.chunks != schedule.p:
        # Each message begins in an array of its own, so that its place in the whole is not seen.
        return Computed(None, None, "it is not known which part of an array each of them holds")
    return Computed(schedule, places, _why_not(schedule))


def _why_not(schedule: Schedule) -> str:
    """Return why a schedule is not its collective; empty if it is."""
    try:
        verify(schedule)
    except ScheduleError as error:
        return str(error).partition(" ranks, ")[2] or str(error)
    return ""


def _check(messages: list[Message]) -> None:
    """Raise NoRoundsError for messages that cannot be transfers of a schedule."""
    if not messages:
        raise NoRoundsError("no rank has sent a message")
    for message in messages:
        link = f"a message from rank {message.source} to rank {message.dest}"
        if message.arrived_s is None:
            raise NoRoundsError(f"{link} was never received")
        if message.source == message.dest:
            raise NoRoundsError(f"rank {message.source} sends to itself")
        if message.nbytes <= 0 or message.nbytes % ITEM_BYTES:
            raise NoRoundsError(f"{link} has {message.nbytes} bytes, which are no float32 values")


def numbered(messages: Sequence[Message]) -> dict[int, list[Message]]:
    """Return messages by their rounds, from 1. Raise NoRoundsError if there are none."""
    check_received(messages)
    by_round: dict[int, list[Message]] = defaultdict(list)
    for message, number in zip(messages, _rounds(list(messages)), strict=True):
        by_round[number].append(message)
    return by_round


def check_received(messages: Sequence[Message]) -> None:
    """Raise NoRoundsError for a message that no rank has received."""
    for message in messages:
        if message.arrived_s is None:
            raise NoRoundsError(
                f"a message from rank {message.source} to rank {message.dest} was never received"
            )


def _rounds(messages: list[Message]) -> list[int]:
    """Return the number of each message's round, from 1."""
    after = _followers(messages)
    waits_for = [0] * len(messages)
    for followers in after.values():
        for follower in followers:
            waits_for[follower] += 1
    ready = deque(index for index, count in enumerate(waits_for) if not count)
    numbers = [1] * len(messages)
    done = 0
    while ready:
        index = ready.popleft()
        done += 1
        for follower in after[index]:
            numbers[follower] = max(numbers[follower], numbers[index] + 1)
            waits_for[follower] -= 1
            if not waits_for[follower]:
                ready.append(follower)
    if done < len(messages):
        raise NoRoundsError("two ranks take messages in another order than they were sent")
    return numbers


def _followers(messages: list[Message]) -> dict[int, set[int]]:
    """Return, by message, those that cannot be in its round or an earlier one."""
    sent: dict[int, list[int]] = defaultdict(list)
    received: dict[int, list[int]] = defaultdict(list)
    for index, message in enumerate(messages):
        sent[message.source].append(index)
        received[message.dest].append(index)
    after: dict[int, set[int]] = defaultdict(set)
    for indices in sent.values():
        _chain(after, sorted(indices, key=lambda index: messages[index].left_s or 0.0))
    for rank, indices in received.items():
        in_order = sorted(indices, key=lambda index: messages[index].asked_s or 0.0)
        _chain(after, in_order)
        for before, index in _received_before(messages, in_order, sent[rank]):
            after[before].add(index)
    return after


def _received_before(
    messages: list[Message], received: list[int], sent: list[int]
) -> Iterator[tuple[int, int]]:
    """Yield each message that a rank sent after it had received others, behind the last one of these.

    `received`: what the rank has received, in the order in which it has asked for it.
    """
    place = {index: number for number, index in enumerate(received)}
    arrivals = deque(sorted(received, key=lambda index: messages[index].arrived_s or 0.0))
    last = -1  # the highest place of what had arrived
    for index in sorted(sent, key=lambda index: messages[index].left_s or 0.0):
        left_s = messages[index].left_s or 0.0
        while arrivals and (messages[arrivals[0]].arrived_s or 0.0) <= left_s:
            last = max(last, place[arrivals.popleft()])
        if last >= 0:
            yield received[last], index


def _chain(after: dict[int, set[int]], indices: list[int]) -> None:
    for index, following in pairwise(indices):
        after[index].add(following)


def price_sentence(trace: Trace) -> str:
    """Return what the messages compute and would cost on other links, or why they are no schedule.

    If the recording has the traffic of a right way, too, the collective is the one that this computes.
    """
    if not sent_values(trace):
        return ""
    expected = trace.part(EXPECTED)
    try:
        schedule, nbytes = schedule_of(trace)
        wanted = collective_of(expected) if expected is not None else None
        computed = what_is_computed(trace, wanted)
    except NoRoundsError as why:
        return f"The messages do not fall into rounds: {why}."
    rounds = sum(1 for _ in schedule)
    seconds = cost(schedule, nbytes, GIGABIT)
    number = sum(len(round_) for round_ in schedule)
    fall = "falls" if number == 1 else "fall"
    where = f"On {counted(schedule.p, 'host')} with links of 1 Gbit/s"
    took = f"they would take about {approx_time(seconds)}, by the cost model"
    texts = [f"The {counted(number, 'message')} {fall} into {counted(rounds, 'round')}."]
    texts.append(_verdict(computed, wanted))
    if computed.schedule is not None and not computed.why:
        other = RIVALS[computed.schedule.collective](schedule.p)
        took += f"; the lab's {WORDS_FOR[other.name]} takes {approx_time(cost(other, nbytes, GIGABIT))}"
    return " ".join([*texts, f"{where}, {took}."])


def collective_of(trace: Trace) -> CollectiveName | None:
    """Return which collective the messages of a recording are; None if they are none or are not known."""
    try:
        computed = what_is_computed(trace)
    except NoRoundsError:
        return None
    return None if computed.schedule is None or computed.why else computed.schedule.collective


def _verdict(computed: Computed, wanted: CollectiveName | None) -> str:
    """Return what the messages compute, in a sentence."""
    if computed.schedule is None:
        return f"They cannot be verified: {computed.why}."
    name = NAMES[computed.schedule.collective]
    if not computed.why:
        return f"Verified: if each rank adds what it receives beside its array, they are {name}."
    if wanted is None:
        return "As they are, they are no collective that the lab knows: `verify` says why."
    return f"They are not {name}: {computed.why}."
