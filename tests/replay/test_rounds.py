"""Messages of a recording as a schedule of labkit's own type."""

from __future__ import annotations

import time

import pytest

from labkit.replay.rounds import GIGABIT, NoRoundsError, price_sentence, schedule_of
from labkit.schedules import (
    CostModel,
    Schedule,
    cost,
    count_traffic,
    ring_allreduce,
    root_reduce,
    tree_reduce,
)
from labkit.schedules.cost_model import rounds_with_sizes
from mpiwatch.trace import Kind, Trace
from tests.replay.recordings import deadlock, ranks, trace_of

NBYTES = 4800


def recording_of(schedule: Schedule, nbytes: int, ahead: bool = False) -> Trace:
    """Return what ranks record that run a schedule, one round each 10 ms; some ranks may be ahead."""
    those = ranks(schedule.p)
    for number, (round_, sizes) in enumerate(rounds_with_sizes(schedule, nbytes)):
        for transfer, size in zip(round_, sizes.tolist(), strict=True):
            begin = 10.0 * number + 1
            early = begin - 4 * (transfer.source % 2) * ahead
            those[transfer.source].send(transfer.dest, early, early + 0.5, nbytes=size)
            those[transfer.dest].receive(transfer.source, begin + 0.1, begin + 2, nbytes=size)
    return trace_of(those, 1000.0)


@pytest.mark.parametrize("make", [ring_allreduce, root_reduce, tree_reduce])
@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("ahead", [False, True])
def test_the_messages_of_a_schedule_are_its_rounds_again(make, p: int, ahead: bool) -> None:
    schedule = make(p)
    nbytes = p * NBYTES
    found, found_nbytes = schedule_of(recording_of(schedule, nbytes, ahead))
    links = [sorted((t.source, t.dest) for t in round_) for round_ in schedule]
    assert [sorted((t.source, t.dest) for t in round_) for round_ in found] == links
    counted, expected = count_traffic(found, found_nbytes), count_traffic(schedule, nbytes)
    assert counted.messages == expected.messages
    assert counted.sent.tolist() == expected.sent.tolist()
    assert counted.received.tolist() == expected.received.tolist()
    model = CostModel(1e-5, 1e-9)
    assert cost(found, found_nbytes, model) == pytest.approx(cost(schedule, nbytes, model))


def test_the_sentence_prices_the_messages() -> None:
    schedule = ring_allreduce(4)
    said = price_sentence(recording_of(schedule, 4 * NBYTES))
    assert said.startswith("The 24 messages fall into 6 rounds. On 4 hosts with links of 1 Gbit/s")
    assert cost(schedule, 4 * NBYTES, GIGABIT) == pytest.approx(6 * (50e-6 + NBYTES * 8e-9))


def test_ten_thousand_messages_of_a_rank_take_seconds() -> None:
    """And not minutes: the time grows with the messages, not with their square."""
    those = ranks(2)
    for number in range(10_000):
        those[number % 2].send(1 - number % 2, number, number + 0.1)
        those[1 - number % 2].receive(number % 2, number, number + 0.5)
    trace = trace_of(those, 10_001.0)
    begin_s = time.process_time()
    assert len(list(schedule_of(trace)[0])) == 10_000
    assert time.process_time() - begin_s < 10


def test_messages_that_are_no_schedule_say_why() -> None:
    with pytest.raises(NoRoundsError, match="a message from rank 0 to rank 1 was never received"):
        schedule_of(deadlock())
    with pytest.raises(NoRoundsError, match="no rank has sent a message"):
        schedule_of(trace_of(ranks(2)))
    those = ranks(2)
    those[0].send(1, 1, 2, nbytes=7)
    those[1].receive(0, 1, 2, nbytes=7)
    assert "has 7 bytes, which are no float32 values" in price_sentence(trace_of(those))
    assert price_sentence(trace_of(ranks(2))) == ""


def test_a_message_that_is_taken_out_of_order_is_no_round() -> None:
    those = ranks(2)
    for tag, begin in (1, 1.0), (2, 2.0):
        those[0].send(1, begin, begin + 0.1, tag=tag)
    for tag, begin in (2, 3.0), (1, 4.0):
        line = {"peer": 0, "tag": tag, "nbytes": 800}
        those[1].add(Kind.RECEIVE, "Recv", begin, begin + 0.5, **line)
    with pytest.raises(NoRoundsError, match="another order"):
        schedule_of(trace_of(those))
