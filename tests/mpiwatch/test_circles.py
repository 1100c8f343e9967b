"""Ranks that wait for each other in blocking messages are told so at once, and only when it is certain."""

from __future__ import annotations

import pytest

from mpiwatch.report import SENDS, Activity, MessageRecord, RankState, Reason, Report, advice, title
from mpiwatch.snapshot import Blocked, stuck_ranks


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
