"""What stands above the replay of a case: the fault first; and which ranks and lines are shown."""

from __future__ import annotations

import numpy as np

from labkit.exercises import catalogue
from labkit.exercises.right_values import inputs_line
from labkit.replay.case import CaseNotes, logs_of_case, notes_of
from labkit.replay.compare import compare
from labkit.replay.headlines import headlines
from labkit.replay.page import Replay
from labkit.replay.parts import EXPECTED
from labkit.replay.picture import Picture
from labkit.replay.sources import cells_named, shown_lines
from labkit.replay.steps import data_for_script
from labkit.replay.words import traffic_rows
from mpiwatch.trace import Event, Kind, Part, Trace, Values, merge
from tests.replay.recordings import MS, Rank, ranks, trace_of

VIA = "cell line 2: `run_case(f)` via cell [9] line 3: `comm.Send(part, right)`"
CELL = "# cell [9]: %%px\ndef f(comm, part):\n    comm.Send(part, right)\n"


def pair(values: tuple[float, ...] = (1.0, 1.0), size: int = 2, begin: float = 50.0) -> list[Rank]:
    """Return ranks of which the first one sends to the second."""
    those = ranks(size)
    sent = Values(len(values), values)
    those[0].add(Kind.SEND, "Send", begin, begin + 1, peer=1, nbytes=16, line=VIA, values=sent)
    those[1].receive(0, begin, begin + 2, nbytes=16)
    return those


def raises(rank: Rank, error: str = "ValueError: wrong datatype", at: float = 90.0) -> None:
    """Let a rank's call fail, and its program end with the error later."""
    line = "cell line 2: `run_case(f)` via cell [9] line 3: `comm.Reduce_scatter(a, b)`"
    rank.add(Kind.COLLECTIVE, "Reduce_scatter", 10, 11, nbytes=8, line=line, has_failed=True, error=error)
    rank.add(Kind.RAISED, "error", at, at, line=line, has_failed=True, error=error)


def case_of(those: list[Rank], needed: int, ended: float | None = None) -> Trace:
    by_rank = {rank: {"ranks": needed} for rank in range(len(those))}
    if ended is not None:
        for notes in by_rank.values():
            notes["ended_s"] = ended * MS  # type: ignore[assignment]
    logs = [rank.log(100.0) for rank in those]
    return merge(logs_of_case(logs, notes_of(by_rank), by_rank))


def test_ranks_that_the_case_does_not_need_are_not_shown() -> None:
    trace = case_of(pair(size=5), 2)
    assert trace.size == 2 and len(traffic_rows(trace)) == 3
    assert "rank 2" not in Picture(trace).svg()


def test_a_case_begins_with_the_first_call_and_ends_with_each_ranks_function() -> None:
    trace = case_of(pair(), 2)
    assert abs(trace.begin_s - 50 * MS) < 1e-9
    assert abs(trace.end_of(0) - 51 * MS) < 1e-9 and abs(trace.end_of(1) - 52 * MS) < 1e-9
    texts = data_for_script(Picture(trace), "")["texts"]
    assert "has ended" in texts
    later = case_of(pair(), 2, ended=60.0)
    assert abs(later.end_of(0) - 60 * MS) < 1e-9


def test_an_error_stands_where_the_function_has_ended() -> None:
    those = ranks(1)
    raises(those[0])
    trace = case_of(those, 1)
    assert abs(trace.end_s - 11 * MS) < 1e-9
    (error,) = (event for event in trace.logs[0].events if event.kind is Kind.RAISED)
    assert abs(error.begin_s - 11 * MS) < 1e-9


def test_a_cell_that_has_run_no_case_is_shown_as_it_is() -> None:
    logs = [rank.log(100.0) for rank in pair(size=5)]
    assert logs_of_case(logs, notes_of({}), {}) == logs


def test_the_headline_names_the_call_and_the_line_of_an_error() -> None:
    those = ranks(1)
    raises(those[0])
    trace = trace_of(those)
    report = "ValueError on rank 0: wrong datatype\n\nTraceback"
    expected = ranks(1)
    expected[0].collective(1, 2, "Allgatherv")
    expected[0].collective(3, 4, "Reduce_scatter")
    said = headlines(trace, report, compare(trace, trace_of(expected)), CaseNotes(ranks=1))
    assert said[0] == "ValueError on rank 0: wrong datatype, in Reduce_scatter (cell [9] line 3)"
    assert said[1] == "The run ended before every rank had called Allgatherv, as one right way does."
    assert len(said) == 2
    assert compare(trace, trace_of(expected)).rows[0] == ("", "yours", "one right way")


def test_nothing_is_said_to_be_alike_after_an_error() -> None:
    those = ranks(1)
    raises(those[0])
    trace = trace_of(those)
    assert "same ranks and sizes" not in compare(trace, trace).sentence


def test_a_request_that_is_never_waited_for_is_named() -> None:
    those = pair()
    for rank in those:
        line = "cell line 4: `comm.Isend(part, right)`"
        rank.add(Kind.START_SEND, "Isend", 60, 60.1, peer=1 - rank.rank, request=2, line=line)
        rank.receive(1 - rank.rank, 61, 62)
    said = headlines(trace_of(those), "", None, CaseNotes())
    assert "Ranks 0, 1: the request of Isend (line 4) is never waited for." in said


def test_wrong_values_come_before_the_messages_and_the_time_is_left_out() -> None:
    values = "Rank 0 ends with the result = [5.5, 5.5]; right is [7, 7]: 2 of 2 values differ."
    trace, expected = trace_of(pair()), trace_of(pair((2.0, 2.0)))
    said = headlines(trace, "", compare(trace, expected), CaseNotes(2, values))
    assert said == [
        values,
        "The message 0 → 1 in round 1 (cell [9] line 3) holds [1, 1]; one right way sends [2, 2].",
    ]


def test_what_the_check_has_found_is_said_if_the_run_is_right() -> None:
    trace = trace_of(pair())
    notes = CaseNotes(2, "", "with 2 ranks: it leaves two communicators")
    said = headlines(trace, "", compare(trace, trace), notes)
    assert said[0].endswith("The check has found: with 2 ranks: it leaves two communicators.")
    assert said[1:] == ["The messages have the same ranks and sizes as in one right way."]
    assert "The check" not in " ".join(headlines(trace, "", None, CaseNotes()))


def test_the_first_missing_message_is_that_of_the_first_round() -> None:
    expected = ranks(3)
    expected[2].send(0, 1, 2, nbytes=8)
    expected[0].receive(2, 1, 2, nbytes=8)
    expected[0].send(2, 3, 4, nbytes=8)
    expected[2].receive(0, 3, 4, nbytes=8)
    said = compare(trace_of(ranks(3)), trace_of(expected)).sentence
    assert "sends no message" in said
    some = ranks(3)
    some[0].send(1, 1, 2, nbytes=8)
    some[1].receive(0, 1, 2, nbytes=8)
    expected[0].send(1, 5, 6, nbytes=8)
    expected[1].receive(0, 5, 6, nbytes=8)
    said = compare(trace_of(some), trace_of(expected)).sentence
    assert said == "Rank 2 sends nothing to rank 0; one right way sends 1 message (8 B)."


def test_a_message_counts_as_sent_if_it_was_received() -> None:
    """A Sendrecv has sent its message, also if its receive has failed."""
    those, expected = ranks(2), ranks(2)
    error = "MessageError: no room"
    those[1].add(Kind.SEND, "Sendrecv", 1, 2, peer=0, nbytes=8, has_failed=True, error=error)
    those[1].add(Kind.RECEIVE, "Sendrecv", 1, 2, peer=0, has_failed=True, error=error)
    those[1].add(Kind.RAISED, "error", 3, 3, has_failed=True, error=error)
    those[0].send(1, 1, 2, nbytes=8)
    those[0].receive(1, 2, 3, nbytes=8)
    for rank in expected:
        rank.send(1 - rank.rank, 1, 2, nbytes=8)
        rank.receive(1 - rank.rank, 1, 2, nbytes=8)
    trace = trace_of(those)
    assert "sends nothing" not in compare(trace, trace_of(expected)).sentence
    under_way = str(data_for_script(Picture(trace), "")["messages"])
    assert "the receive of rank 1 has failed" in under_way and "nobody" not in under_way


def test_the_lines_of_the_function_are_shown() -> None:
    those = pair()
    those[1].events[0] = those[1].events[0]._replace(line=VIA)
    trace = trace_of(those)
    assert cells_named([VIA]) == {"9"}
    rows = shown_lines(trace, "%%replay\nrun_case(f)", {"9": CELL})
    assert rows.rows[0] == ("", "cell [9]") and rows.rows[1] == ("1", "%%px")
    row = rows.row_of(VIA)
    assert rows.rows[row - 1] == ("3", "    comm.Send(part, right)")
    page = Replay(trace, "%%replay\nrun_case(f)", cells={"9": CELL})._repr_html_()
    assert "def f(comm, part):" in page


def test_without_its_cell_the_line_of_the_replayed_cell_is_shown() -> None:
    rows = shown_lines(trace_of(pair()), "%%replay\nrun_case(f)", {})
    assert rows.rows[rows.row_of(VIA) - 1] == ("2", "run_case(f)")


def test_a_text_in_a_line_names_no_cell() -> None:
    event: Event = pair()[0].events[0]._replace(line="cell line 4: `print(' via cell [7] line 1: ')`")
    assert cells_named([event.line]) == set()


def test_a_message_that_was_too_long_is_named_with_its_size() -> None:
    those = ranks(2)
    error = "Exception: Message truncated: 0 bytes received but buffer size is 4"
    those[1].send(0, 1, 2, nbytes=4)
    those[0].receive(1, 1, 3, has_failed=True, error=error)
    those[0].add(Kind.RAISED, "error", 3, 3, has_failed=True, error=error)
    said = headlines(trace_of(those), error, None, CaseNotes(2))
    assert said[1] == "Rank 1 sends 4 B to rank 0 (line 5); the buffer of that receive has less room."


def too_large() -> Trace:
    """Return a message that is too large for the receive of which a wait finds it out."""
    those = ranks(2)
    error = "Exception: Message truncated: 0 bytes received but buffer size is 4"
    those[1].send(0, 1, 2, nbytes=4)
    line = "cell line 4: `request = comm.Irecv(got, left)`"
    those[0].add(Kind.START_RECEIVE, "Irecv", 1, 1.1, peer=1, request=1, line=line)
    those[0].add(Kind.WAIT, "Wait", 1.2, 3, peer=1, request=1, has_failed=True, error=error)
    those[0].add(Kind.RAISED, "error", 3, 3, has_failed=True, error=error)
    return trace_of(those)


def test_mpis_reversed_sizes_are_nowhere_on_the_page() -> None:
    report = "Exception on rank 0: Message truncated: 0 bytes received but buffer size is 4"
    trace = too_large()
    assert headlines(trace, report, None, CaseNotes(2))[0].startswith(
        "Exception on rank 0: the message is too large for its receive"
    )
    replay = Replay(trace, "", report)
    for text in repr(replay), Picture(trace).svg(), str(data_for_script(Picture(trace), "")):
        assert "buffer size" not in text


def test_a_request_whose_wait_has_failed_is_not_forgotten() -> None:
    svg = Picture(too_large()).svg()
    assert "message that was too large for its receive" in svg and "nobody received" not in svg
    assert "never waited for" not in svg and "not complete when the rank failed" in svg
    under_way = str(data_for_script(Picture(too_large()), "")["messages"])
    assert "the receive of rank 0 has failed" in under_way and "nobody" not in under_way


def with_expected(those: list[Rank], expected: list[Rank]) -> Trace:
    logs = [
        rank.log(100.0)._replace(parts=(Part(EXPECTED, right.events),))
        for rank, right in zip(those, expected, strict=True)
    ]
    return merge(logs)


def test_consequences_of_an_error_are_left_out() -> None:
    those, expected = ranks(1), ranks(1)
    raises(those[0])
    expected[0].collective(1, 2, "Allgatherv")
    replay = Replay(with_expected(those, expected), "", "ValueError on rank 0: wrong datatype")
    assert replay.comparison is None
    assert "Allgatherv" not in repr(replay) and "one right way" not in replay._repr_html_()


def test_of_a_case_with_a_finding_it_is_not_said_that_messages_cannot_be_verified() -> None:
    trace = trace_of(pair())
    assert "round" in " ".join(Replay(trace).notes)
    notes = " ".join(Replay(trace, case=CaseNotes(2, "", "a request without a Wait")).notes)
    assert "verified" not in notes.lower() and "round" not in notes


def test_a_run_that_got_through_is_not_said_to_hang() -> None:
    finding = "with 2 ranks: the ranks hang. Rank 0 is waiting in Send (to rank 1, tag 0) at line 9"
    trace = trace_of(pair())
    notes = CaseNotes(2, "", finding)
    (said,) = headlines(trace, "", None, notes)
    assert said == (
        "The check has found: with 2 ranks: the ranks hang if Send does not buffer. Rank 0 is waiting in "
        "Send (to rank 1, tag 0) at line 9. This run got through."
    )
    assert Replay(with_expected(pair(), ranks(2)), case=notes).comparison is None


def test_values_that_were_in_no_collective_are_named() -> None:
    those = ranks(1)
    for first, count in (6, 1), (3, 3):
        those[0].add(
            Kind.START_COLLECTIVE, "Iallreduce", 10 + first, 11 + first, nbytes=4 * count,
            values=Values(count, (1.0,) * count), address=1000 + 4 * first, offset=4 * first, whole=28,
        )  # fmt: skip
    values = "Rank 0 ends with `grads` = [1, 2]; right is [3, 4]: 2 of 2 values differ."
    said = headlines(trace_of(those), "", None, CaseNotes(1, values))
    assert said == [
        values,
        "Values 0–2 of rank 0's array of 7 were in no Iallreduce: 2 calls took the others.",
    ]


def test_the_inputs_of_the_case_stand_on_the_page() -> None:
    inputs = "Case: 2 ranks. Inputs: weight = 0.33 on rank 0, 0.67 on rank 1."
    notes = notes_of({0: {"ranks": 2, "inputs": inputs}, 1: {"ranks": 2, "inputs": inputs}})
    replay = Replay(trace_of(pair()), case=notes)
    assert inputs in repr(replay) and inputs in replay._repr_html_()


def test_the_inputs_in_a_line() -> None:
    array = np.ones(2, np.float32)
    tree = inputs_line(catalogue.find("average_by_tree"), [(array, 1 / 3), (10 * array, 2 / 3)])
    assert tree == (
        "Inputs: gradient = float32 [1, 1] (2 values) on rank 0, float32 [10, 10] (2 values) on rank 1; "
        "weight = 0.333 on rank 0, 0.667 on rank 1."
    )
    gather = inputs_line(catalogue.find("average_by_gather"), [(np.ones((3, 2)), 0)] * 2)
    assert gather == ("Inputs: gradients = float64 (shape (3, 2)) on every rank; drop = 0 on every rank.")


def test_contents_are_not_compared_where_the_rounds_differ() -> None:
    those, expected = ranks(2), ranks(2)
    for rank in those:
        rank.send(1 - rank.rank, 1, 2, nbytes=16)
    for rank in those:
        rank.receive(1 - rank.rank, 3, 4, nbytes=16)
    two = Values(2, (9.0, 9.0))
    expected[1].send(0, 1, 2, nbytes=16)
    expected[0].receive(1, 1, 2, nbytes=16)
    expected[0].add(Kind.SEND, "Send", 3, 4, peer=1, nbytes=16, values=two)
    expected[1].receive(0, 3, 4, nbytes=16)
    sentence, rows = compare(trace_of(those), trace_of(expected))
    assert rows and "holds" not in sentence and "The table shows" in sentence
