"""From messages back to a schedule: what a cell sent, as rounds of transfers that can be counted and priced.

In a round, a rank sends one message at most and receives one at most. A message belongs to the first round
after those of the messages that its sender had sent or received before, and that its receiver had taken
before.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd

import numpy as np

from labkit.schedules import CostModel, Round, Schedule, cost, merge_rounds
from labkit.schedules.schedule import copy_round
from labkit.text import counted
from labkit.units import approx_time
from mpiwatch.trace import Message, Trace

ITEM_BYTES = 4  # a schedule is of float32 values
GIGABIT = CostModel(50e-6, 8e-9)  # one host's link of 1 Gbit/s, with a latency of 50 µs


class NoRoundsError(ValueError):
    """Messages do not fall into rounds; the text says why."""


def schedule_of(trace: Trace) -> tuple[Schedule, int]:
    """Return what the ranks of a recording sent, as a schedule, and the bytes of the array that it is for.

    Its transfers have the ranks and the sizes of the messages, so it can be counted, priced and simulated. A
    recording does not say which chunk a message holds, and whether it was added: each transfer has the first
    chunks and copies them, and `verify` does not apply. Raise NoRoundsError if there are no rounds.
    """
    messages = [message for message in trace.messages if message.send is not None]
    _check(messages)
    numbers = _rounds(messages)
    unit = 0
    for message in messages:
        unit = gcd(unit, message.nbytes)
    chunks = max(message.nbytes for message in messages) // unit
    by_round: dict[int, list[Message]] = defaultdict(list)
    for message, number in zip(messages, numbers, strict=True):
        by_round[number].append(message)
    rounds = [merge_rounds(*(_transfer(message, unit) for message in by_round[n])) for n in sorted(by_round)]

    def each_round() -> Iterator[Round]:
        yield from rounds

    return Schedule("the messages of a cell", "broadcast", trace.size, chunks, each_round), chunks * unit


def _transfer(message: Message, unit: int) -> Round:
    return copy_round(message.source, message.dest, 0, np.array(message.nbytes // unit))


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
    """Return what the messages would cost on other links, or why they are no schedule."""
    if not any(message.send is not None for message in trace.messages):
        return ""
    try:
        schedule, nbytes = schedule_of(trace)
    except NoRoundsError as why:
        return f"The messages do not fall into rounds: {why}."
    rounds = sum(1 for _ in schedule)
    seconds = cost(schedule, nbytes, GIGABIT)
    messages = counted(sum(len(round_) for round_ in schedule), "message")
    where = f"On {counted(trace.size, 'host')} with links of 1 Gbit/s"
    took = f"they would take about {approx_time(seconds)}, by the cost model"
    return f"The {messages} fall into {counted(rounds, 'round')}. {where}, {took}."
