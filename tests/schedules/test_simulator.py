"""The simulator agrees with the cost model on equal ranks, and with a plain simulation on unequal ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.schedules import (
    ALLREDUCE,
    CostModel,
    Network,
    chunk_bounds,
    collective,
    copy_round,
    cost,
    count_traffic,
    lower_bound,
    simulate,
)
from tests.schedules.test_cost import MODEL, SCHEDULES


@collective("allgather")
def all_at_once(p):
    """Every rank sends to every other rank in one round: messages queue up at both ends."""
    source, dest = np.nonzero(~np.eye(p, dtype=bool))
    yield copy_round(source, dest, source)


@pytest.mark.parametrize("make", SCHEDULES)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8, 13])
def test_equal_ranks_take_the_time_of_the_cost_model(make, p):
    even, uneven = 4 * 720720, 4 * 720720 + 4 * 7
    network = Network.uniform(p, MODEL)
    assert simulate(make(p), even, network).seconds == pytest.approx(cost(make(p), even, MODEL))
    assert simulate(make(p), uneven, network).seconds <= cost(make(p), uneven, MODEL) * (1 + 1e-12)


@settings(max_examples=50)
@given(
    st.sampled_from([*SCHEDULES, all_at_once]),
    st.integers(1, 9),
    st.integers(0, 50),
    st.randoms(use_true_random=False),
)
def test_unequal_networks_agree_with_a_plain_simulation(make, p, n, random):
    """The plain simulation keeps its clocks in lists and handles one transfer at a time."""
    network = Network.uniform(p, MODEL)
    for _ in range(random.randrange(4)):
        network = network.slow_link(random.randrange(p), 1 + 3 * random.random())
    schedule, bounds = make(p), chunk_bounds(n, make(p).chunks) * 4
    clock = [0.0] * p
    for round_ in schedule:
        send_free, receive_free, reductions = list(clock), list(clock), [0.0] * p
        ready = [max(clock[t.source], clock[t.dest]) for t in round_]
        for _, i in sorted((start, i) for i, start in enumerate(ready)):
            source, dest, first, stop, reduce = list(round_)[i]
            size = float(bounds[stop] - bounds[first])
            if size == 0:
                continue
            alpha = max(network.alpha[source], network.alpha[dest])
            beta = max(network.beta[source], network.beta[dest])
            start = max(send_free[source], receive_free[dest])
            send_free[source] = receive_free[dest] = start + alpha + beta * size
            reductions[dest] += reduce * size * network.gamma[dest]
        ends = zip(send_free, receive_free, reductions, strict=True)
        clock = [max(sent, received) + reduction for sent, received, reduction in ends]
    np.testing.assert_allclose(simulate(schedule, 4 * n, network).finish, clock, rtol=1e-12)


def test_the_timeline_holds_every_transfer_with_its_times():
    network = Network.uniform(5, MODEL)
    simulation = simulate(ALLREDUCE["ring"](5), 500, network, timeline=True)
    assert len(simulation.timeline) == count_traffic(ALLREDUCE["ring"](5), 500).messages
    for _, _, start, end in simulation.timeline:
        assert end - start == pytest.approx(MODEL.alpha + 100 * MODEL.beta)
    assert max(end for *_, end in simulation.timeline) == pytest.approx(simulation.seconds)
    assert not simulate(ALLREDUCE["ring"](5), 500, network).timeline


def test_two_messages_share_an_uplink():
    """0→2 and 1→3 take turns on the uplinks of two hosts; 0→1 and 2→3 do not use them."""
    network = Network.uniform(4, CostModel(0, 1)).on_hosts((0, 0, 1, 1), 1, 3)

    def seconds(source, dest):
        moves = collective("broadcast", lambda p: 1)(lambda p: iter([copy_round(source, dest, 0)]))
        return simulate(moves(4), 4, network).seconds

    assert seconds(np.array([0]), np.array([2])) == 1 + 3 * 4
    assert seconds(np.array([0, 1]), np.array([2, 3])) == 2 * (1 + 3 * 4)
    assert seconds(np.array([0, 3]), np.array([2, 1])) == 1 + 3 * 4  # one in each direction
    assert seconds(np.array([0, 2]), np.array([1, 3])) == 4


@pytest.mark.parametrize("p", [2, 3, 4, 6, 7])
@pytest.mark.parametrize("name", ALLREDUCE)
def test_no_schedule_beats_the_lower_bound(name, p):
    uniform = Network.uniform(p, CostModel(1e-4, 1e-8))
    hosts = np.arange(p) * 2 // p
    for network in uniform, uniform.slow_link(p - 1, 10), uniform.on_hosts(hosts, 1e-4, 4e-8):
        assert simulate(ALLREDUCE[name](p), 1 << 20, network).seconds >= lower_bound(network, 1 << 20)
    assert lower_bound(uniform, 1000) == pytest.approx(1e-4 + 2 * (p - 1) / p * 1e-5)


def test_thousands_of_ranks():
    p = 4096
    simulation = simulate(ALLREDUCE["ring"](p), 4 * p * 16, Network.uniform(p, MODEL))
    assert simulation.seconds == pytest.approx(
        2 * (p - 1) * (MODEL.alpha + 64 * MODEL.beta) + (p - 1) * 64 * MODEL.gamma
    )
    with pytest.raises(ValueError, match="the schedule is for 3 ranks, but the network has 4"):
        simulate(ALLREDUCE["ring"](3), 12, Network.uniform(4, MODEL))
