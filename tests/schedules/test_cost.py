"""Counted, priced and simulated, the same schedules give the textbook's formulas where these hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import schedules
from labkit.schedules import ALLREDUCE, bounds, collective, copying
from labkit.schedules.cost_model import CostModel, cost, cost_terms
from labkit.schedules.simulator import Network, simulate
from labkit.schedules.traffic import traffic

RATES = CostModel(alpha=2e-5, beta=1e-9, gamma=3e-10)
KIND = [
    schedules.ring_reduce,
    schedules.tree_reduce,
    schedules.ring_reduce_scatter,
    schedules.direct_allgather,
]
MAKES = [*ALLREDUCE.values(), *KIND]


def test_eight_ranks_and_256_bytes():
    root, ring = (traffic(ALLREDUCE[name](8), 256) for name in ("root", "ring"))
    assert (root.messages, root.total, root.busiest) == (14, 3584, 3584)
    assert (ring.messages, ring.total, ring.busiest) == (112, 3584, 896)
    assert root.sent.tolist() == [1792] + [256] * 7


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("n", [0, 1, 3, 17, 64])
def test_traffic_is_that_of_the_transfers_one_by_one(make, p, n):
    schedule, count = make(p), traffic(make(p), 8 * n, itemsize=8)
    ends = bounds(n, schedule.chunks)
    sent, received, messages = [0] * p, [0] * p, 0
    for source, dest, first, stop, _ in (transfer for one in schedule for transfer in one):
        size = 8 * int(ends[stop] - ends[first])
        sent[source], received[dest], messages = (
            sent[source] + size,
            received[dest] + size,
            messages + (size > 0),
        )
    assert (count.messages, count.sent.tolist(), count.received.tolist()) == (messages, sent, received)
    assert count.total == sum(received)


def test_bytes_must_be_whole_values():
    with pytest.raises(ValueError, match="10 bytes are no whole number of values of 4 bytes"):
        traffic(ALLREDUCE["ring"](2), 10)


@pytest.mark.parametrize("p", [1, 2, 4, 8, 16, 64])
def test_the_textbook_s_formulas_come_out(p):
    (a, b, g), n, lg = RATES, 4 * 64 * 100, p.bit_length() - 1
    expected = {
        "root": 2 * (p - 1) * (a + n * b) + (p - 1) * n * g,
        "ring": 2 * (p - 1) * a + 2 * n * (p - 1) / p * b + n * (p - 1) / p * g,
        "tree": 2 * lg * (a + n * b) + lg * n * g,
        "recursive-doubling": lg * (a + n * b + n * g),
        "halving-doubling": 2 * lg * a + 2 * n * (p - 1) / p * b + n * (p - 1) / p * g,
    }
    assert {name: cost(make(p), n, RATES) for name, make in ALLREDUCE.items()} == pytest.approx(expected)
    gathered = cost(schedules.ring_allgather(p), p * n, RATES) + (p - 1) * n * g  # then each adds up
    assert gathered == pytest.approx((p - 1) * (a + n * b + n * g))


@pytest.mark.parametrize("p", [8, 16, 64])
def test_ring_and_doubling_cross_where_the_formula_says(p):
    a, b, _ = RATES
    n = a * (2 * (p - 1) - np.log2(p)) / (b * (np.log2(p) - 2 * (p - 1) / p))

    def advantage(nbytes):
        ring, doubling = (
            cost(ALLREDUCE[name](p), nbytes, CostModel(a, b)) for name in ("ring", "recursive-doubling")
        )
        return doubling - ring

    size = 4 * p * round(n / 4 / p)
    assert advantage(size + 40 * p) > 0 > advantage(size - 40 * p)


@pytest.mark.parametrize("p", range(2, 17))
def test_no_rank_of_an_allreduce_sends_less_than_the_lower_bound_and_the_ring_reaches_it(p):
    n = 4 * 720720
    bound = 2 * n * (p - 1) / p
    busiest = {name: cost_terms(make(p), n, RATES).sent for name, make in ALLREDUCE.items()}
    assert min(busiest.values()) >= bound - 1e-6
    assert busiest["ring"] == pytest.approx(bound)
    if p & (p - 1) == 0:
        assert busiest["halving-doubling"] == pytest.approx(bound)


def test_uneven_pieces_wait_for_the_largest():
    # 5 values on 3 ranks are pieces of 1, 2 and 2 values: in each round some rank sends 2.
    assert cost_terms(ALLREDUCE["ring"](3), 20, RATES) == (4, 4 * 8, 2 * 8)
    assert cost_terms(ALLREDUCE["ring"](3), 4, RATES) == (4, 4 * 4, 2 * 4)  # one value: one message a round
    assert cost_terms(ALLREDUCE["ring"](3), 0, RATES) == (0, 0, 0)


def test_a_rank_s_messages_of_one_round_queue_up():
    assert cost_terms(schedules.ring_reduce(4), 16, RATES) == (3 + 3, 3 * 4 + 3 * 4, 3 * 4)


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8, 13])
def test_equal_ranks_take_what_the_price_says(make, p):
    even, uneven = 4 * 720720, 4 * 720720 + 4 * 7
    network = Network.of(p, RATES)
    assert simulate(make(p), even, network).seconds == pytest.approx(cost(make(p), even, RATES))
    assert simulate(make(p), uneven, network).seconds <= cost(make(p), uneven, RATES) * (1 + 1e-12)


@collective("allgather")
def all_at_once(p):
    """Every rank sends to every other in one round: messages queue up at both ends."""
    source, dest = np.nonzero(~np.eye(p, dtype=bool))
    yield copying(source, dest, source)


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([*MAKES, all_at_once]),
    st.integers(1, 9),
    st.integers(0, 50),
    st.randoms(use_true_random=False),
)
def test_the_rounds_of_each_rank_s_clock(make, p, n, random):
    """Against a plain simulation: clocks in lists, one transfer at a time."""
    network = Network.of(p, RATES)
    for _ in range(random.randrange(4)):
        network = network.slow_link(random.randrange(p), 1 + 3 * random.random())
        network = network.slow_processor(random.randrange(p), 1 + 9 * random.random())
        network = network.pause(random.randrange(p), random.random() * 1e-4)
        network = network.link(random.randrange(p), random.randrange(p), random.random() * 1e-4, 1e-8)
    schedule, ends = make(p), bounds(n, make(p).chunks) * 4
    clock = network.ready.tolist()
    for one in schedule:
        sends, receives, adds = list(clock), list(clock), [0.0] * p
        there = [max(clock[t.source], clock[t.dest]) for t in one]
        for _, i in sorted((start, i) for i, start in enumerate(there)):
            source, dest, first, stop, add = list(one)[i]
            size = float(ends[stop] - ends[first])
            if size == 0:
                continue
            alpha = max(network.alpha[source], network.alpha[dest])
            beta = max(network.beta[source], network.beta[dest])
            alpha, beta = network.links.get((source, dest), (alpha, beta))
            sends[source] = receives[dest] = max(sends[source], receives[dest]) + alpha + beta * size
            adds[dest] += add * size * network.gamma[dest]
        clock = [max(two) + add for *two, add in zip(sends, receives, adds, strict=True)]
    np.testing.assert_allclose(simulate(schedule, 4 * n, network).finish, clock, rtol=1e-12)


def test_messages_queue_up_at_both_ends():
    # 0→1 and 1→0 begin at once; 0→2 waits for its sender, 2→0 for its receiver, 1→2 and 2→1 for both.
    assert simulate(all_at_once(3), 12, Network.of(3, CostModel(1, 0))).finish.tolist() == [2, 3, 3]


def test_what_is_slow_shows():
    p, n = 8, 1 << 20
    equal = Network.of(p, RATES)
    ring, tree = ALLREDUCE["ring"](p), ALLREDUCE["tree"](p)
    usual = simulate(ring, n, equal).seconds
    assert simulate(ring, n, equal.slow_link(3, 4)).seconds > 3 * usual  # every round waits for the slow link
    assert simulate(ring, n, equal.slow_processor(3, 10)).seconds > usual
    assert simulate(ring, n, equal.pause(3, 1.0)).seconds == pytest.approx(1 + usual, rel=1e-6)
    assert simulate(ring, n, equal.link(1, 0, 9, 9)).seconds == usual  # the ring sends only upwards
    assert simulate(ring, n, equal.link(0, 1, 9, 9)).seconds > 9 * 14
    late = simulate(tree, n, equal.pause(7, 1e-4)).seconds - simulate(tree, n, equal).seconds
    assert 0 < late <= 1e-4 + 1e-12


def test_the_timeline_has_every_transfer_in_its_time():
    network = Network.of(5, RATES).pause(2, 1e-3)
    played = simulate(ALLREDUCE["ring"](5), 500, network, timeline=True)
    assert len(played.timeline) == traffic(ALLREDUCE["ring"](5), 500).messages
    for _, transfer, start, end in played.timeline:
        assert end - start == pytest.approx(RATES.alpha + 100 * RATES.beta)
        assert start >= network.ready[[transfer.source, transfer.dest]].max()
    assert max(end for *_, end in played.timeline) == pytest.approx(played.seconds)
    assert not simulate(ALLREDUCE["ring"](5), 500, network).timeline


def test_the_network_is_of_the_schedule_s_ranks():
    with pytest.raises(ValueError, match="the schedule is for 3 ranks, the network has 4"):
        simulate(ALLREDUCE["ring"](3), 12, Network.of(4, RATES))


def test_thousands_of_ranks():
    p = 4096
    played = simulate(ALLREDUCE["ring"](p), 4 * p * 16, Network.of(p, RATES))
    assert played.seconds == pytest.approx(
        2 * (p - 1) * (RATES.alpha + 64 * RATES.beta) + (p - 1) * 64 * RATES.gamma
    )
