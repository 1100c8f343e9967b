"""Every schedule keeps its kind's promise for any p, and the verifier sees any that does not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import schedules
from labkit.schedules import Round, Schedule, ScheduleError, adding, collective, copying, holdings, verify

ALONE = {
    "allreduce": [*schedules.ALLREDUCE.values()],
    "reduce": [schedules.root_reduce, schedules.tree_reduce, schedules.ring_reduce],
    "reduce-scatter": [schedules.ring_reduce_scatter],
    "allgather": [schedules.ring_allgather, schedules.direct_allgather],
    "broadcast": [schedules.root_broadcast, schedules.tree_broadcast],
}
ALL = [make for makes in ALONE.values() for make in makes]


def of(*rounds: Round, p: int = 3, chunks: int = 3, kind: str = "allreduce") -> Schedule:
    return Schedule("ours", kind, p, chunks, lambda: iter(rounds))


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("p", range(1, 34))
def test_every_schedule_keeps_its_promise(kind, p):
    for make in ALONE[kind]:
        assert make(p).kind == kind
        verify(make(p))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=14))
def test_nodes_of_any_sizes_in_any_order(nodes):
    verify(schedules.hierarchical(len(nodes), tuple(nodes)))


def test_nodes_must_be_told_for_every_rank():
    with pytest.raises(ValueError, match="node of each of 3 ranks, got 2"):
        schedules.hierarchical(3, (0, 0))


def values(schedule: Schedule, n: int) -> np.ndarray:
    """Carry the schedule out on real values, (p, n): what the verifier follows without them."""
    arrays = np.random.default_rng(0).integers(-99, 99, (schedule.p, n))
    total, ends = arrays.sum(axis=0), schedules.bounds(n, schedule.chunks)
    for one in schedule:
        sent = arrays.copy()
        for source, dest, first, stop, add in one:
            part = slice(ends[first], ends[stop])
            arrays[dest, part] = add * arrays[dest, part] + sent[source, part]
    return arrays - total


@pytest.mark.parametrize("make", schedules.ALLREDUCE.values())
def test_values_come_out_as_the_verifier_says(make):
    for p in (1, 2, 3, 4, 5, 8, 13):
        for n in (0, 1, p - 1, p, 3 * p + 1):
            assert not values(make(p), n).any()


@pytest.mark.parametrize("p", [4, 5])
def test_holdings_are_those_of_the_ring(p):
    held = list(holdings(schedules.ring_allreduce(p)))
    assert len(held) == 2 * (p - 1) + 1
    count = np.array([one.sum(axis=2) for one in held])
    assert (count[0] == 1).all() and (count[-1] == p).all()
    for k in range(p):  # after round k, the piece that came last holds k + 1 contributions
        assert count[k].max() == k + 1 and (count[k] == k + 1).sum() == (p if k else p * p)
    assert all(np.array_equal(count[p - 1][rank, rank], p) for rank in range(p))


def changed(schedule: Schedule, where: int, what: str) -> Schedule:
    """Return the schedule with one transfer dropped, made twice, or added for copied and the reverse."""
    rounds, passed = [], 0
    for one in schedule:
        rows = list(one)
        if passed <= where < passed + len(rows):
            at = where - passed
            flipped = rows[at]._replace(add=not rows[at].add)
            rows[at : at + 1] = {"drop": [], "twice": [rows[at]] * 2, "flip": [flipped]}[what]
        passed += len(one)
        columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
        rounds.append(Round(*columns[:4], columns[4].astype(bool)))
    return replace(schedule, rounds=lambda: iter(rounds))


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("what", ["drop", "twice", "flip"])
def test_no_transfer_can_be_dropped_doubled_or_flipped(make, what):
    for p in (2, 3, 4, 5, 7):
        for where in range(sum(map(len, make(p)))):
            with pytest.raises(ScheduleError):
                verify(changed(make(p), where, what))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=7), st.data())
def test_nor_any_between_nodes(nodes, data):
    schedule = schedules.hierarchical(len(nodes), tuple(nodes))
    where = data.draw(st.integers(0, sum(map(len, schedule)) - 1))
    for what in "drop", "twice", "flip":
        with pytest.raises(ScheduleError):
            verify(changed(schedule, where, what))


def ring(gather=copying, start=0, to=1, rounds=1):
    """Return a ring as a student may write it: right with these defaults."""

    @collective("allreduce")
    def ours(p):
        rank = np.arange(p)
        for k in range(1, p):
            yield adding(rank, (rank + 1) % p, (rank - k) % p)
        for k in range(p - rounds):
            yield gather(rank, (rank + to) % p, (rank - k + start) % p)

    return ours


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (
            ring(gather=adding),
            r"round 3: 0→1 \+0: rank 1 adds rank 1's contribution to piece 0 a second",
        ),
        (ring(start=1), "round 3: 0→1 =1: rank 1 overwrites piece 1, and nobody else has rank 1's"),
        (ring(to=2), "should hold the contributions of rank 0, rank 1, rank 2 and holds"),
        (
            ring(rounds=2),
            "rank 0's piece 1 .* rank 1, rank 2 and holds .* of rank 0, rank 2$",
        ),
    ],
)
def test_students_mistakes_are_told(ours, said):
    verify(ring()(3))
    with pytest.raises(ScheduleError, match=said):
        verify(ours(3))


@pytest.mark.parametrize(
    ("rounds", "kind", "said"),
    [
        ([adding(1, 1, 0)], "allreduce", "round 1: 1→1 .*rank 1 sends to itself"),
        ([adding(0, 3, 0)], "allreduce", "round 1: 0→3 .*no rank 3, only 0 … 2"),
        ([adding(-1, 0, 0)], "allreduce", "no rank -1"),
        ([adding(0, 1, 2, 4)], "allreduce", r"0→1 \+2–3: pieces 2 … 3 are not"),
        ([adding(0, 1, 1, 1)], "allreduce", "are not one or more of 0 … 2"),
        ([copying(0, 1, 0), copying(1, 2, 2)], "allgather", "round 2: 1→2 =2: rank 1 sends piece 2 before"),
        (
            [copying(np.array([0, 1]), np.array([1, 2]), 0)],
            "broadcast",
            "1→2 =0: rank 1 sends piece 0 before",
        ),
        ([adding(0, 1, 0)], "allgather", "rank 1 has no piece 0 yet to add to"),
        ([copying(0, 1, 2)], "allreduce", "rank 1 overwrites piece 2, and nobody else has rank 1's"),
        ([copying(np.array([0, 1]), 2, 2)], "reduce", "1→2 =2 and 0→2 =2 both write piece 2 of rank 2"),
        (
            [],
            "reduce-scatter",
            "rank 0's piece 0 .* rank 2 and holds the contribution of rank 0$",
        ),
        ([], "broadcast", "rank 1's piece 0 should hold the contribution of rank 0 and holds nothing"),
    ],
)
def test_what_cannot_be_is_told(rounds, kind, said):
    with pytest.raises(ScheduleError, match=said):
        verify(of(*rounds, kind=kind))


def test_a_piece_for_each_rank_where_ranks_own_pieces():
    with pytest.raises(ScheduleError, match="a piece for each of 3 ranks, got 2 pieces"):
        verify(of(kind="allgather", chunks=2))
