"""Ranks that are stuck forever, in a circle of messages or in unwatched MPI calls, are found."""

from __future__ import annotations

import os

import pytest

from mpiwatch.recorder import CellState, FlightRecorder
from mpiwatch.report import SENDS, Activity, MessageRecord, RankState, Reason, Report, advice, title
from mpiwatch.snapshot import FRESH_S, SLOW_DEADLINES, Blocked, stuck_ranks, stuck_since


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (
            "Recv 2, Recv 0, Recv 1",
            "ranks 0 → 2 → 1 → 0 @ each waits in Recv for a message from the next.",
        ),
        (
            "Send 1, Send 0, recv 1",
            "ranks 0 → 1 → 0 @ each waits in Send until the next receives.",
        ),
        (
            "recv 1, Recv 2, Ssend 1",
            "ranks 1 → 2 → 1 @ each waits in a send or a receive for the next.",
        ),
        ("Ssend 0, recv 0, recv 0", "rank 0 waits for itself in Ssend: it can receive only afterwards."),
        (
            "Probe -1, recv -1, recv 0",
            "ranks 0–2 wait for messages from one another, but none sends one.",
        ),
    ],
)
def test_a_circle_of_messages_is_named(calls: str, expected: str) -> None:
    ranks = [
        RankState(
            rank,
            Activity.WAITING_FOR_MESSAGE,
            message=MessageRecord(name, None if peer == "-1" else int(peer), 0),
        )
        for rank, (name, peer) in enumerate(call.split() for call in calls.split(", "))
    ]
    report = Report(Reason.CIRCLE, 2.0, tuple(ranks), reporter=0)
    assert title(report) == expected.replace("@", "wait for each other in a circle:")
    first = "Break the circle: let even ranks" if "→" in expected else "A rank has"
    assert advice(report)[0].startswith("A rank cannot wait for itself" if "itself" in expected else first)
    assert advice(report)[1].startswith("The ranks are ready")


@pytest.mark.parametrize(
    ("calls", "stuck"),
    [
        ("recv 1, recv 0, -", {0, 1}),
        ("recv 1, recv 0, recv 1", {0, 1, 2}),  # rank 2 waits for the circle
        ("Send 1, recv 0, -", set()),  # a message that may be on its way
        ("Send 1, recv -1, recv 0", set()),
        ("recv -1, recv 0, -", set()),  # rank 2 may still send
        ("recv -1, recv 0, recv 1", {0, 1, 2}),
        ("recv 1, recv 2, -", set()),
        ("recv 1, recv 0 +sends, -", set()),
        ("recv 1, recv 0 +receives, -", {0, 1}),
        ("Send 1, Send 0 +receives, -", set()),
        ("Send 1, Send 0 +sends, -", {0, 1}),
        ("Send 1, Ssend 2, recv 0", {0, 1, 2}),
        ("recv 0, -, -", {0}),
    ],
)
def test_ranks_are_stuck_if_no_other_rank_can_end_their_wait(calls: str, stuck: set[int]) -> None:
    waiting = {}
    for rank, call in enumerate(calls.split(", ")):
        if call != "-":
            name, peer, *besides = call.split()
            waiting[rank] = Blocked(int(peer), name in SENDS, "+sends" in besides, "+receives" in besides, 1)
    assert stuck_ranks(waiting, 3) == stuck


NOW_S, DEADLINE_S = 1000.0, 20.0
Rank = dict[str, object]  # fields of its slot
FINISHED: Rank = {"cell_state": CellState.RETURNED}
COMPUTING: Rank = {"sampled_s": NOW_S}


def stuck(seconds: float = DEADLINE_S + 1, call: str = "Waitall", line: int = 4, age_s: float = 0.1) -> Rank:
    at = {"mpi_call": call.encode(), "place": b"cell line %d" % line}
    return {"mpi_call_since_s": NOW_S - seconds, "sampled_s": NOW_S - age_s, **at}


WAITING: Rank = {"waiting_since_s": NOW_S - DEADLINE_S - 1, "sampled_s": NOW_S}  # in a watched call


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([stuck(), FINISHED], True),
        ([stuck(), stuck(line=5)], True),
        ([stuck(), stuck(call="Barrier")], True),
        ([stuck(), WAITING, FINISHED], True),
        ([stuck(), stuck(), FINISHED], True),
        ([stuck(), COMPUTING], False),
        ([stuck(), WAITING, COMPUTING, FINISHED], False),
        ([stuck(DEADLINE_S - 1), FINISHED], False),
        ([stuck(), stuck(DEADLINE_S - 1, line=5)], False),
        ([stuck(age_s=FRESH_S + 1), FINISHED], False),  # its watchdog has not sampled for a while
        ([WAITING, WAITING, FINISHED], False),  # a watched call ends by itself
        ([FINISHED, FINISHED], False),
        ([stuck(), stuck()], False),  # perhaps only slow
        ([stuck(SLOW_DEADLINES * DEADLINE_S + 1), stuck(SLOW_DEADLINES * DEADLINE_S + 1)], True),
        ([stuck()], False),
    ],
)
def test_a_deadlock_is_certain(ranks: list[Rank], expected: bool) -> None:
    for order in ranks, ranks[::-1]:
        recorder = FlightRecorder(FlightRecorder.create(len(ranks)))
        recorder.remove()
        for slot, fields in zip(recorder.slots, order, strict=True):
            for name, value in {"pid": os.getpid(), **fields}.items():
                setattr(slot, name, value)
        assert bool(stuck_since(recorder, NOW_S, DEADLINE_S)) == expected
