"""What a function sends beside what the reference sends: one sentence, and a table of what differs."""

from __future__ import annotations

import pytest

from labkit.replay.compare import compare
from labkit.replay.page import Replay
from labkit.replay.parts import EXPECTED
from mpiwatch.trace import Part, Trace, merge
from tests.replay.recordings import ranks, trace_of

P = 4


def rounds_of(*rounds: list[tuple[int, int]], nbytes: int = 24) -> Trace:
    """Return a recording of rounds of messages, each of a source and a dest."""
    those = ranks(P)
    for number, links in enumerate(rounds):
        begin = 10.0 * number + 1
        for source, dest in links:
            those[source].send(dest, begin, begin + 0.5, nbytes=nbytes)
            those[dest].receive(source, begin + 0.1, begin + 2, nbytes=nbytes)
    return trace_of(those)


RIGHT = [(rank, (rank + 1) % P) for rank in range(P)]
LEFT = [(rank, (rank - 1) % P) for rank in range(P)]
RING = rounds_of(*[RIGHT] * 3)


def test_messages_that_go_the_other_way() -> None:
    said, rows = compare(rounds_of(*[LEFT] * 3), RING)
    assert said == (
        "The messages go the other way round: rank 0 sends to rank 3; in one right way, rank 0 sends to "
        "rank 1."
    )
    assert rows[0] == ("", "yours", "one right way") and len(rows) == 4
    assert rows[1] == (
        "round 1",
        "0 → 3 (24 B), 1 → 0 (24 B), 2 → 1 (24 B), 3 → 2 (24 B)",
        "0 → 1 (24 B), 1 → 2 (24 B), 2 → 3 (24 B), 3 → 0 (24 B)",
    )


def test_a_message_to_another_rank() -> None:
    others = [link for link in RIGHT if link[0] != 2]
    said, rows = compare(rounds_of([*others, (2, 1)]), rounds_of(RIGHT))
    assert said == "Rank 2 sends to rank 1 (line 5); one right way sends to rank 3."
    assert ("round 2", "2 → 1 (24 B)", "–") in rows


def test_a_missing_message() -> None:
    said, rows = compare(rounds_of(RIGHT, RIGHT), RING)
    assert said == "Rank 0 sends 2 messages to rank 1; one right way sends 3: 1 message missing."
    assert rows[1:] == [("round 3", "–", "0 → 1 (24 B), 1 → 2 (24 B), 2 → 3 (24 B), 3 → 0 (24 B)")]
    said, _ = compare(rounds_of(RIGHT[1:]), rounds_of(RIGHT))
    assert said == "Rank 0 sends nothing to rank 1; one right way sends 1 message (24 B)."


def test_a_message_that_is_sent_twice() -> None:
    said, _ = compare(rounds_of(*[RIGHT] * 6), RING)
    assert said == ("Rank 0 sends 6 messages to rank 1 (line 5); one right way sends 3: each of them twice.")


def test_a_message_that_one_right_way_does_without() -> None:
    said, _ = compare(rounds_of(RIGHT, [(0, 2)]), rounds_of(RIGHT))
    assert said == "Rank 0 sends 1 message to rank 2 (line 5), which one right way does without."


def test_larger_messages() -> None:
    said, _ = compare(rounds_of(*[RIGHT] * 3, nbytes=96), RING)
    assert said == (
        "Rank 0 sends 288 B to rank 1 (line 5); in one right way, it is 72 B in as many messages."
    )


def test_a_message_that_is_never_received_is_compared_by_pair() -> None:
    those = ranks(P)
    those[0].send(1, 1, 2, nbytes=24)
    said, rows = compare(trace_of(those), rounds_of([(0, 1)]))
    assert said.startswith("A message from rank 0 to rank 1 (line 5) is never received") and rows == []


def test_another_part_of_the_array() -> None:
    def sends(offset: int) -> Trace:
        those = ranks(2)
        those[0].send(1, 1, 2, nbytes=24, offset=offset, whole=96)
        those[1].receive(0, 1, 3, nbytes=24)
        return trace_of(those)

    said, _ = compare(sends(24), sends(48))
    assert said == (
        "Message 1 from rank 0 to rank 1 (line 5) is another part of the array: it begins at value 3; in one "
        "right way, at value 6."
    )


def test_messages_that_are_alike_point_at_the_values() -> None:
    said, rows = compare(RING, RING)
    assert "look at the values" in said and rows == []


def test_collectives_in_place_of_messages() -> None:
    those = ranks(P)
    for rank in those:
        rank.collective(1, 2)
    said, rows = compare(trace_of(those), RING)
    assert said == "Your function sends no message (it calls Allreduce); one right way sends 12 messages."
    assert ("Allreduce", "1 times", "0 times") in rows


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_replay_shows_the_comparison(is_alike: bool) -> None:
    trace = RING if is_alike else rounds_of(*[LEFT] * 3)
    logs = [trace.logs[rank]._replace(parts=(Part(EXPECTED, RING.logs[rank].events),)) for rank in range(P)]
    replay = Replay(merge(logs))
    words = "look at the values" if is_alike else "The messages go the other way round"
    assert words in replay._repr_html_() and words in repr(replay)
    assert ("one right way</th>" in replay._repr_html_()) is not is_alike
    assert Replay(trace).comparison is None
