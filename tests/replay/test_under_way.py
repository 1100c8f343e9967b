"""Arrays that are used while a message is under way, and whose contributions an array holds."""

from __future__ import annotations

from labkit.replay.origins import origin_of, origin_text
from labkit.replay.under_way import misuses
from labkit.replay.words import values_text
from mpiwatch.trace import Kind, Trace, Values
from tests.replay.recordings import Rank, ranks, trace_of

CHUNK = 800


def start(  # noqa: PLR0917
    rank: Rank, kind: Kind, begin: float, address: int, line: int, values: Values | None = None
) -> int:
    """Add the start of a request; return its number."""
    number = len(rank.events) + 1
    name = "Isend" if kind is Kind.START_SEND else "Irecv"
    nbytes = CHUNK if kind is Kind.START_SEND else -1
    place = f"cell line {line}: `comm.{name}(chunk)`"
    more = {"address": address, "request": number, "line": place, "values": values, "nbytes": nbytes}
    return rank.add(kind, name, begin, begin + 0.1, peer=1, **more)


def complete(rank: Rank, request: int, end: float, values: Values | None = None) -> None:
    of_send = rank.events[request - 1].kind is Kind.START_SEND
    more = {"request": request, "nbytes": CHUNK, "line": "cell line 9: `request.Wait()`", "values": values}
    rank.add(Kind.COMPLETE, "Wait", end, end, peer=1, is_of_send=of_send, **more)


def both(first: Kind, second: Kind, *, waits: bool = False, apart: int = 0) -> Trace:
    """Return a rank that starts two requests for one chunk, or for two; it may wait for the first before."""
    those = ranks(2)
    one = start(those[0], first, 1.0, 4096, 6)
    if waits:
        complete(those[0], one, 2.0)
    other = start(those[0], second, 3.0, 4096 + apart, 7)
    if not waits:
        complete(those[0], one, 5.0)
    complete(those[0], other, 6.0)
    return trace_of(those)


def test_a_receive_into_an_array_that_is_still_sent() -> None:
    assert misuses(both(Kind.START_SEND, Kind.START_RECEIVE)) == [
        "Rank 0: Irecv (line 7) writes into the array that Isend (line 6) is still sending. Wait for that "
        "request first."
    ]
    assert misuses(both(Kind.START_SEND, Kind.START_RECEIVE, waits=True)) == []
    assert misuses(both(Kind.START_SEND, Kind.START_RECEIVE, apart=CHUNK)) == []


def test_a_send_of_an_array_that_is_still_received() -> None:
    (said,) = misuses(both(Kind.START_RECEIVE, Kind.START_SEND))
    assert said.startswith("Rank 0: Isend (line 7) sends what Irecv (line 6) is still receiving.")


def test_two_sends_of_one_array_are_right_and_two_receives_are_not() -> None:
    assert misuses(both(Kind.START_SEND, Kind.START_SEND)) == []
    assert "write into the same part" in misuses(both(Kind.START_RECEIVE, Kind.START_RECEIVE))[0]


def test_an_array_that_changes_before_its_send_is_complete() -> None:
    those = ranks(2)
    one = start(those[0], Kind.START_SEND, 1.0, 4096, 6, Values(100, (1.0, float("nan"))))
    complete(those[0], one, 5.0, Values(100, (2.0, float("nan"))))
    (said,) = misuses(trace_of(those))
    assert said.startswith("Rank 0: the array that Isend (line 6) sends was changed before Wait (line 9)")
    those = ranks(2)
    one = start(those[0], Kind.START_SEND, 1.0, 4096, 6, Values(100, (1.0, float("nan"))))
    complete(those[0], one, 5.0, Values(100, (1.0, float("nan"))))
    assert misuses(trace_of(those)) == []


def test_digits_say_whose_contributions_are_in_a_value() -> None:
    assert origin_of(1101.0, 4) == (1, 0, 1, 1)
    assert origin_of(21, 4) == (1, 2, 0, 0)
    assert [origin_of(value, 4) for value in (0.0, 0.5, -1.0, 10000.0, True, "1")] == [None] * 6
    assert origin_text(Values(3, (1101.0, 1101.0, 1.0)), 4) == "of ranks 0, 2, 3, then of rank 0"
    assert origin_text(Values(1, (20.0,)), 4) == "of rank 1 (rank 1 twice)"
    assert origin_text(Values(2, (1.0, 0.5)), 4) == ""


def test_values_are_shown_with_their_origin_where_the_numbers_allow_it() -> None:
    rank = ranks(4)[0]
    rank.add(Kind.SEND, "Send", 1, 2, values=Values(2, (1101.0, 1101.0)))
    assert values_text(rank.events[0], 4) == "[1101, 1101] of ranks 0, 2, 3"
    assert values_text(rank.events[0]) == "[1101, 1101]"
    rank.add(Kind.SEND, "Send", 1, 2, values=Values(12, tuple(range(12))))
    assert values_text(rank.events[1]).count(",") == 11  # a small array is shown in full
