"""Messages of a recording as a schedule of labkit's own type."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest

from labkit.replay.parts import EXPECTED
from labkit.replay.rounds import (
    GIGABIT,
    NAMES,
    NoRoundsError,
    collective_of,
    price_sentence,
    schedule_of,
    what_is_computed,
)
from labkit.schedules import (
    ALLREDUCE,
    CostModel,
    Round,
    Schedule,
    chunk_bounds,
    collective,
    cost,
    count_traffic,
    ring_allgather,
    ring_allreduce,
    ring_reduce,
    ring_reduce_scatter,
    root_allreduce,
    root_broadcast,
    root_reduce,
    tree_allreduce,
    tree_broadcast,
    tree_reduce,
)
from labkit.schedules.cost_model import rounds_with_sizes
from mpiwatch.trace import Kind, Part, Trace, merge
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


ARRAY, BESIDE = 1 << 20, 1 << 30  # addresses


def recording_in_arrays(
    schedule: Schedule, n: int, itemsize: int = 8, beside: Mapping[str, int] | None = None
) -> Trace:
    """Return what ranks record that run a schedule on arrays of n values; what is added arrives beside.

    `beside`: where that is; by default at the same offset in a second array, or in a buffer of its size.
    """
    bounds = (chunk_bounds(n, schedule.chunks) * itemsize).tolist()
    those = ranks(schedule.p)
    for number, round_ in enumerate(schedule):
        begin = 10.0 * number + 1
        for source, dest, first, stop, is_added in round_:
            offset, nbytes = bounds[first], bounds[stop] - bounds[first]
            sent = {"offset": offset, "whole": n * itemsize, "address": ARRAY + offset}
            those[source].send(dest, begin, begin + 0.5, nbytes=nbytes, **sent)
            received = sent | {"address": (BESIDE if is_added else ARRAY) + offset}
            if is_added and beside is not None:
                received |= beside
            elif is_added and dest % 2:  # a buffer of the chunk's size
                received |= {"offset": 0, "whole": nbytes, "address": BESIDE}
            those[dest].receive(source, begin + 0.1, begin + 2, nbytes=nbytes, **received)
    return trace_of(those, 1000.0)


@pytest.mark.parametrize(
    "make",
    [
        *(ring_allreduce, root_allreduce, tree_allreduce, ring_reduce_scatter, ring_allgather),
        *(tree_reduce, root_reduce, ring_reduce, tree_broadcast, root_broadcast),
    ],
)
@pytest.mark.parametrize("p", [2, 3, 4, 5])
@pytest.mark.parametrize("n", [60, 13])
def test_messages_in_arrays_are_verified_as_the_collective_that_they_are(make, p: int, n: int) -> None:
    schedule = make(p)
    trace = recording_in_arrays(schedule, n)
    computed = what_is_computed(trace)
    assert computed.why == "" and computed.schedule is not None
    assert computed.schedule.collective == schedule.collective
    if schedule.chunks > 1:  # else its array may be cut in more chunks
        own, other = (sorted(t for round_ in each for t in round_) for each in (computed.schedule, schedule))
        assert own == other
    found, nbytes = schedule_of(trace)  # whose bytes are exact, however the array is cut
    sent = [0] * p
    for message in trace.messages:
        sent[message.source] += message.nbytes
    assert nbytes == n * 8 and count_traffic(found, nbytes).sent.tolist() == sent
    assert f"they are {NAMES[schedule.collective]}." in price_sentence(trace)


@pytest.mark.parametrize("name", ["tree", "halving-doubling", "recursive-doubling", "root", "ring"])
@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_a_temporary_that_is_larger_than_the_array_is_not_taken_for_it(name: str, p: int) -> None:
    """The lab's algorithms keep one for all calls."""
    trace = recording_in_arrays(
        ALLREDUCE[name](p), 40, beside={"whole": 10**6, "offset": 0, "address": BESIDE}
    )
    assert "Verified: if each rank adds what it receives beside its array" in price_sentence(trace)
    assert schedule_of(trace)[1] == 40 * 8


def test_messages_of_empty_chunks_are_left_out() -> None:
    """Three values on four ranks: one chunk has none."""
    said = price_sentence(recording_in_arrays(ring_allreduce(4), 3))
    assert "Verified" in said or "the lab knows" in said, said
    assert "0 bytes" not in said


def test_a_wrong_schedule_is_told_why() -> None:
    @collective("reduce-scatter")
    def too_short(p: int) -> Iterator[Round]:
        yield from list(ring_reduce_scatter(p))[:-1]

    expected = recording_in_arrays(ring_reduce_scatter(4), 60)
    assert collective_of(expected) == "reduce-scatter"
    trace = recording_in_arrays(too_short(4), 60)
    logs = [
        log._replace(parts=(Part(EXPECTED, expected.logs[rank].events),)) for rank, log in trace.logs.items()
    ]
    said = price_sentence(merge(logs))
    assert "They are not a reduce-scatter: after the last round: rank 0's chunk 0 should hold" in said, said
    assert "they are no collective that the lab knows" in price_sentence(trace)


def test_what_a_function_sends_is_priced_beside_the_ring() -> None:
    said = price_sentence(recording_in_arrays(root_allreduce(4), 1 << 20))
    assert "Verified: if each rank adds what it receives beside its array, they are an all-reduce." in said
    assert "they would take about 403 ms, by the cost model; the lab's ring all-reduce takes 101 ms" in said


def test_the_sentence_prices_the_messages() -> None:
    schedule = ring_allreduce(4)
    said = price_sentence(recording_of(schedule, 4 * NBYTES))
    assert said.startswith(
        "The 24 messages fall into 6 rounds. They cannot be verified: it is not known which"
    )
    assert "On 4 hosts with links of 1 Gbit/s, they would take about" in said
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
