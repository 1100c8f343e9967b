"""Every schedule computes its collective for any p, and the verifier finds every mistake."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import schedules
from labkit.schedules import (
    Round,
    Schedule,
    ScheduleError,
    contents_by_round,
    copy_round,
    reduce_round,
    verify,
)

BY_COLLECTIVE = {
    "allreduce": [*schedules.ALLREDUCE.values()],
    "reduce": [schedules.root_reduce, schedules.tree_reduce, schedules.ring_reduce],
    "reduce-scatter": [schedules.ring_reduce_scatter],
    "allgather": [schedules.ring_allgather],
    "broadcast": [schedules.root_broadcast, schedules.tree_broadcast],
}
ALL = [make for makes in BY_COLLECTIVE.values() for make in makes]


def schedule_of(*rounds: Round, p: int = 3, chunks: int = 3, name: str = "allreduce") -> Schedule:
    return Schedule("ours", name, p, chunks, lambda: iter(rounds))


@pytest.mark.parametrize("name", BY_COLLECTIVE)
@pytest.mark.parametrize("p", range(1, 34))
def test_every_schedule_computes_its_collective(name, p):
    for make in BY_COLLECTIVE[name]:
        assert make(p).collective == name
        verify(make(p))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=14))
def test_hierarchical_works_with_nodes_of_any_size_in_any_order(nodes):
    verify(schedules.hierarchical(len(nodes), tuple(nodes)))


@pytest.mark.parametrize("p", [4, 5])
def test_contents_by_round_of_the_ring(p):
    contents = list(contents_by_round(schedules.ring_allreduce(p)))
    assert len(contents) == 2 * (p - 1) + 1
    inputs = np.array([held.sum(axis=2) for held in contents])
    assert (inputs[0] == 1).all() and (inputs[-1] == p).all()
    for k in range(p):  # after round k, the chunk that each rank received last is a sum of k + 1 inputs
        assert inputs[k].max() == k + 1 and (inputs[k] == k + 1).sum() == (p if k else p * p)
    assert all(np.array_equal(inputs[p - 1][rank, rank], p) for rank in range(p))


def with_mistake(schedule: Schedule, where: int, mistake: str) -> Schedule:
    """Return the schedule with one transfer dropped, repeated, or changed between reduce and copy (flip)."""
    rounds, passed = [], 0
    for round_ in schedule:
        transfers = list(round_)
        if passed <= where < passed + len(transfers):
            at = where - passed
            flipped = transfers[at]._replace(reduce=not transfers[at].reduce)
            changed = {"drop": [], "repeat": [transfers[at]] * 2, "flip": [flipped]}[mistake]
            transfers[at : at + 1] = changed
        passed += len(round_)
        columns = np.array(transfers, dtype=np.int64).reshape(-1, 5).T
        rounds.append(Round(*columns[:4], columns[4].astype(bool)))
    return replace(schedule, rounds=lambda: iter(rounds))


NODES = (0, 1, 0, 2, 1)


@pytest.mark.parametrize("make", [*ALL, lambda p: schedules.hierarchical(p, NODES[:p])])
@pytest.mark.parametrize("mistake", ["drop", "repeat", "flip"])
def test_a_dropped_repeated_or_flipped_transfer_is_found(make, mistake):
    for p in (2, 3, 4, 5):
        for where in range(sum(map(len, make(p)))):
            with pytest.raises(ScheduleError):
                verify(with_mistake(make(p), where, mistake))


@pytest.mark.parametrize(
    ("rounds", "name", "message"),
    [
        (
            [reduce_round(0, 1, 0)] * 2,
            "allreduce",
            r"round 2: 0→1 \+0: rank 1 adds rank 0's input .* a second time",
        ),
        (
            [reduce_round(1, 0, 0, 3)],
            "reduce",
            "chunk 0 should hold the inputs of rank 0, rank 1, rank 2 but holds .* of rank 0, rank 1$",
        ),
        ([reduce_round(1, 1, 0)], "allreduce", "round 1: 1→1 .*rank 1 sends to itself"),
        ([reduce_round(0, 3, 0)], "allreduce", "round 1: 0→3 .*no rank 3, expected 0 … 2"),
        ([reduce_round(-1, 0, 0)], "allreduce", "no rank -1"),
        ([reduce_round(0, 1, 2, 4)], "allreduce", r"0→1 \+2–3: expected .* chunks 0 … 2, got 2 … 3"),
        ([reduce_round(0, 1, 1, 1)], "allreduce", "expected one or more of the chunks 0 … 2"),
        (
            [copy_round(0, 1, 0), copy_round(1, 2, 2)],
            "allgather",
            "round 2: 1→2 =2: rank 1 sends chunk 2 before it holds it",
        ),
        (
            [copy_round(np.array([0, 1]), np.array([1, 2]), 0)],
            "broadcast",
            "1→2 =0: rank 1 sends chunk 0 before",
        ),
        ([reduce_round(0, 1, 0)], "allgather", "rank 1 has no chunk 0 yet to add to"),
        (
            [copy_round(0, 1, 2)],
            "allreduce",
            "rank 1 overwrites chunk 2, the last copy of rank 1's input to it",
        ),
        ([copy_round(np.array([0, 1]), 2, 2)], "reduce", "1→2 =2 and 0→2 =2 both write chunk 2 of rank 2"),
        ([], "reduce-scatter", "rank 0's chunk 0 .* rank 2 but holds the input of rank 0$"),
        ([], "broadcast", "rank 1's chunk 0 should hold the input of rank 0 but holds nothing"),
    ],
)
def test_impossible_transfers_are_explained(rounds, name, message):
    with pytest.raises(ScheduleError, match=message):
        verify(schedule_of(*rounds, name=name))


def test_allgather_needs_one_chunk_per_rank_and_a_hierarchy_each_ranks_node():
    with pytest.raises(ScheduleError, match="needs one chunk per rank, got 2 chunks"):
        verify(schedule_of(name="allgather", chunks=2))
    with pytest.raises(ValueError, match="node of each of 3 ranks, got 2"):
        schedules.hierarchical(3, (0, 0))
