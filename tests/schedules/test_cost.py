"""The traffic and the cost of the schedules are those of the textbook's formulas, where these hold."""

import pytest

from labkit import schedules
from labkit.schedules import ALLREDUCE, CostModel, chunk_bounds, cost, cost_terms, count_traffic

MODEL = CostModel(alpha=2e-5, beta=1e-9, gamma=3e-10)
SCHEDULES = [
    *ALLREDUCE.values(),
    schedules.ring_reduce,
    schedules.tree_reduce,
    schedules.ring_reduce_scatter,
]


def test_traffic_of_eight_ranks_and_256_bytes():
    root, ring = (count_traffic(ALLREDUCE[name](8), 256) for name in ("root", "ring"))
    assert (root.messages, root.total, root.busiest) == (14, 3584, 3584)
    assert (ring.messages, ring.total, ring.busiest) == (112, 3584, 896)
    assert root.sent.tolist() == [1792] + [256] * 7
    across = [one for each in ALLREDUCE["halving-doubling"](8) for one in each if one.source < 4 <= one.dest]
    assert sum(one.stop - one.first for one in across) == 8, "one array leaves the host of ranks 0 to 3"


@pytest.mark.parametrize("make", SCHEDULES)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("n", [0, 1, 3, 17, 64])
def test_traffic_equals_the_sum_over_single_transfers(make, p, n):
    schedule, traffic = make(p), count_traffic(make(p), 4 * n)
    bounds = chunk_bounds(n, schedule.chunks)
    sent, received, messages = [0] * p, [0] * p, 0
    for source, dest, first, stop, _ in (transfer for round_ in schedule for transfer in round_):
        size = 4 * int(bounds[stop] - bounds[first])
        sent[source] += size
        received[dest] += size
        messages += size > 0
    assert (traffic.messages, traffic.sent.tolist(), traffic.received.tolist()) == (messages, sent, received)
    assert traffic.total == sum(received)


@pytest.mark.parametrize("p", [1, 2, 4, 8, 16, 64])
def test_cost_follows_the_textbook_formulas(p):
    (a, b, g), n, lg = MODEL, 4 * 64 * 100, p.bit_length() - 1
    expected = {
        "root": 2 * (p - 1) * (a + n * b) + (p - 1) * n * g,
        "ring": 2 * (p - 1) * a + 2 * n * (p - 1) / p * b + n * (p - 1) / p * g,
        "ring-reduce": 3 * (p - 1) * a + (p - 1) * (2 / p + 1) * n * b + n * (p - 1) / p * g,
        "tree": 2 * lg * (a + n * b) + lg * n * g,
        "recursive-doubling": lg * (a + n * b + n * g),
        "halving-doubling": 2 * lg * a + 2 * n * (p - 1) / p * b + n * (p - 1) / p * g,
    }
    assert {name: cost(make(p), n, MODEL) for name, make in ALLREDUCE.items()} == pytest.approx(expected)
    allgather_then_reduce = cost(schedules.ring_allgather(p), p * n, MODEL) + (p - 1) * n * g
    assert allgather_then_reduce == pytest.approx((p - 1) * (a + n * b + n * g))


def test_unequal_chunks_cost_as_much_as_the_largest():
    # 5 values on 3 ranks are chunks of 1, 2 and 2 values: in each round some rank sends 2 values.
    assert cost_terms(ALLREDUCE["ring"](3), 20, MODEL).tolist() == [4, 4 * 8, 2 * 8]
    # One value: one message a round.
    assert cost_terms(ALLREDUCE["ring"](3), 4, MODEL).tolist() == [4, 4 * 4, 2 * 4]
    assert cost_terms(ALLREDUCE["ring"](3), 0, MODEL).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"a multiple of 4 bytes .* got 10 bytes"):
        count_traffic(ALLREDUCE["ring"](2), 10)


def test_messages_of_one_rank_in_one_round_add_up():
    assert cost_terms(schedules.ring_reduce(4), 16, MODEL).tolist() == [3 + 3, 3 * 4 + 3 * 4, 3 * 4]
