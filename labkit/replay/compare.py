"""What a function has sent, beside what the reference sends in the same case: a sentence and a table.

There may be several right ways to send: the words call the reference's "one right way".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labkit.replay.rounds import NoRoundsError, numbered
from labkit.replay.words import short_line, values_text
from labkit.text import counted
from labkit.units import approx_size
from mpiwatch.trace import Event, Kind, Message, Trace

MOST_ROWS = 40
ROUNDING = 1e-4  # of values that are sums in another order, also in float32
NOTHING = "–"
SAME = "The messages have the same ranks and sizes as in one right way."
ALIKE = f"{SAME} If the result is wrong, look at the values that they hold, and at what is done with them."
DIFFERENT = "The table shows what differs from one right way."

Link = tuple[int, int]  # sender and receiver


class Comparison(NamedTuple):
    """How the traffic of a function differs from the expected one: a sentence, and the rows of a table."""

    sentence: str
    rows: list[tuple[str, str, str]]  # the head, and what differs: where, yours, expected

    @property
    def is_alike(self) -> bool:
        """Return whether no difference is known."""
        return self.sentence in ("", ALIKE) and not self.rows


def compare(trace: Trace, expected: Trace) -> Comparison:
    """Return how the messages of a recording differ from the expected ones."""
    yours, theirs = _sent(trace), _sent(expected)
    is_early = has_ended_early(trace)
    difference = (
        _of_collectives(trace, expected, yours, theirs)
        or _of_links(yours, theirs)
        or _of_counts(yours, theirs)
        or _of_sizes(yours, theirs)
        or ("" if is_early else _of_lost(yours))
        or _of_places(yours, theirs)
    )
    rows = _rows_by_round(yours, theirs) or _rows_by_link(yours, theirs)
    of_collectives = _rows_of_collectives(trace, expected)
    rows += of_collectives if rows else _table("", of_collectives)
    if not difference and not rows:
        difference = _of_contents(yours, theirs) or _of_collectives_contents(trace, expected)
    sentence = difference
    if not difference and not is_early:
        sentence = DIFFERENT if rows else ALIKE
    return Comparison(sentence, rows)


def has_ended_early(trace: Trace) -> bool:
    """Return whether a rank has ended with an error, or in a call that never returned."""
    events = [event for log in trace.logs.values() for event in log.events]
    return any(event.kind is Kind.RAISED or event.never_ended for event in events)


def _sent(trace: Trace) -> list[Message]:
    """Return the messages that were sent; also by a call that has failed then, if they were received."""
    return [
        message for message in trace.messages if message.send is not None or message.arrived_s is not None
    ]


def _collectives(trace: Trace) -> Counter[str]:
    return Counter(collective.operation for collective in trace.collectives)


def _by_link(messages: Sequence[Message]) -> dict[Link, list[Message]]:
    by_link: dict[Link, list[Message]] = {}
    for message in messages:
        by_link.setdefault((message.source, message.dest), []).append(message)
    return by_link


def _nbytes(messages: Sequence[Message]) -> int:
    return sum(max(0, message.nbytes) for message in messages)


# Sentences, the plainest difference first


def _of_collectives(
    trace: Trace, expected: Trace, yours: Sequence[Message], theirs: Sequence[Message]
) -> str:
    if not yours and theirs:
        called = ", ".join(_collectives(trace))
        instead = f" (it calls {called})" if called else ""
        way = counted(len(theirs), "message")
        return f"Your function sends no message{instead}; one right way sends {way}."
    missing = _collectives(expected) - _collectives(trace)
    if not theirs and missing:
        names = ", ".join(missing)
        if has_ended_early(trace):
            return f"The run ended before every rank had called {names}, as one right way does."
        return f"Your function does not call {names}, as one right way does."
    return ""


def _of_links(yours: Sequence[Message], theirs: Sequence[Message]) -> str:
    """Return a sentence about messages to other ranks than expected; nothing if there are none."""
    mine, right = _by_link(yours), _by_link(theirs)
    extra = [link for link in _links_in_order(yours) if link not in right]
    missing = [link for link in _links_in_order(theirs) if link not in mine]
    if extra and missing and all((dest, source) in missing for source, dest in extra):
        source, dest = extra[0]
        there = next((link for link in missing if link[0] == source), missing[0])
        return (
            f"The messages go the other way round: rank {source} sends to rank {dest}; in one right way, "
            f"rank {there[0]} sends to rank {there[1]}."
        )
    for source, dest in extra:
        instead = [link[1] for link in missing if link[0] == source]
        line = _line(mine[source, dest][0])
        if instead:
            return f"Rank {source} sends to rank {dest}{line}; one right way sends to rank {instead[0]}."
    if extra and not missing:
        source, dest = extra[0]
        sent = counted(len(mine[source, dest]), "message")
        line = _line(mine[source, dest][0])
        is_lost = all(message.arrived_s is None for message in mine[source, dest])
        lost = ", and which is never received" if is_lost else ""
        return f"Rank {source} sends {sent} to rank {dest}{line}, which one right way does without{lost}."
    if missing:
        source, dest = missing[0]
        sent = counted(len(right[source, dest]), "message")
        size = approx_size(_nbytes(right[source, dest]))
        return f"Rank {source} sends nothing to rank {dest}; one right way sends {sent} ({size})."
    return ""


def _of_counts(yours: Sequence[Message], theirs: Sequence[Message]) -> str:
    mine, right = _by_link(yours), _by_link(theirs)
    for link in sorted(right):
        sent, wanted = len(mine[link]), len(right[link])
        if sent == wanted:
            continue
        words = f"Rank {link[0]} sends {counted(sent, 'message')} to rank {link[1]}"
        if sent < wanted:
            return f"{words}; one right way sends {wanted}: {counted(wanted - sent, 'message')} missing."
        how = "each of them twice" if sent == 2 * wanted else f"{sent - wanted} more than needed"
        return f"{words}{_line(mine[link][0])}; one right way sends {wanted}: {how}."
    return ""


def _of_sizes(yours: Sequence[Message], theirs: Sequence[Message]) -> str:
    mine, right = _by_link(yours), _by_link(theirs)
    for link in sorted(right):
        sent, wanted = _nbytes(mine[link]), _nbytes(right[link])
        if sent != wanted:
            return (
                f"Rank {link[0]} sends {approx_size(sent)} to rank {link[1]}{_line(mine[link][0])}; in one "
                f"right way, it is {approx_size(wanted)} in as many messages."
            )
    return ""


def _of_lost(yours: Sequence[Message]) -> str:
    for message in yours:
        if message.arrived_s is None:
            return (
                f"A message from rank {message.source} to rank {message.dest}{_line(message)} is never "
                "received; in one right way, each is."
            )
    return ""


def _of_places(yours: Sequence[Message], theirs: Sequence[Message]) -> str:
    """Return a sentence about messages of another part of the array; nothing if that is not known."""
    mine, right = _by_link(yours), _by_link(theirs)
    for link in sorted(right):
        for number, (message, expected) in enumerate(zip(mine[link], right[link], strict=True), 1):
            sent, right_send = message.send, expected.send
            if sent is None or right_send is None:
                continue
            if sent.whole == right_send.whole > max(message.nbytes, 0) and sent.offset != right_send.offset:
                begin, right_begin = _begin(sent), _begin(right_send)
                return (
                    f"Message {number} from rank {link[0]} to rank {link[1]}{_line(message)} is another part "
                    f"of the array: it begins at {begin}; in one right way, at {right_begin}."
                )
    return ""


def _of_contents(yours: Sequence[Message], theirs: Sequence[Message]) -> str:
    """Return a sentence about the first message that holds other values; nothing if that is not known."""
    mine = _by_link(yours)
    rounds = _rounds_of(theirs)
    positions: Counter[Link] = Counter()
    pairs = []
    for expected in theirs:
        link = expected.source, expected.dest
        message = mine[link][positions[link]]
        positions[link] += 1
        pairs.append((rounds[id(expected)], link, message, expected))
    for number, (source, dest), message, expected in sorted(pairs, key=lambda pair: pair[:2]):
        sent, right_send = message.send, expected.send
        if sent is None or right_send is None or not _holds_other_values(sent, right_send):
            continue
        in_round = f" in round {number}" if number else ""
        return (
            f"The message {source} → {dest}{in_round}{_line(message)} holds {values_text(sent)}; one right "
            f"way sends {values_text(right_send)}."
        )
    return ""


def _of_collectives_contents(trace: Trace, expected: Trace) -> str:
    """Return a sentence about the first collective that leaves other values on a rank; else nothing."""
    mine, right = trace.collectives, expected.collectives
    if [one.operation for one in mine] != [one.operation for one in right]:
        return ""
    for one, right_one in zip(mine, right, strict=True):
        for rank in sorted(set(one.calls) & set(right_one.calls)):
            call, right_call = one.calls[rank], right_one.calls[rank]
            if not call.has_failed and _holds_other_values(call, right_call):
                place = short_line(call.line)
                where = f" ({place})" if place else ""
                return (
                    f"After {call.operation}{where}, rank {rank} has {values_text(call)}; in one "
                    f"right way, {values_text(right_call)}."
                )
    return ""


def _holds_other_values(event: Event, right: Event) -> bool:
    """Return whether two calls are known to hold different values, by more than rounding."""
    values, right_values = event.values, right.values
    if values is None or right_values is None or values.text or right_values.text:
        return False
    if values.items != right_values.items or len(values.first) != len(right_values.first):
        return values.items != right_values.items
    return not all(map(_is_near, values.first, right_values.first))


def _is_near(value: object, right: object) -> bool:
    if isinstance(value, (int, float)) and isinstance(right, (int, float)):
        both_nan = math.isnan(value) and math.isnan(right)
        return both_nan or math.isclose(value, right, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return value == right


def _rounds_of(messages: Sequence[Message]) -> dict[int, int]:
    """Return the round of each message, by its identity; 0 unless they fall into rounds."""
    try:
        by_round = numbered(messages)
    except NoRoundsError:
        return {id(message): 0 for message in messages}
    return {id(message): number for number, of_round in by_round.items() for message in of_round}


def _links_in_order(messages: Sequence[Message]) -> list[Link]:
    """Return each sender and receiver once, those of the first round first."""
    rounds = _rounds_of(messages)
    links = sorted((rounds[id(message)], (message.source, message.dest)) for message in messages)
    return list(dict.fromkeys(link for _, link in links))


def _begin(send: Event) -> str:
    """Return where in its array a message begins: "value 4", counted from 0."""
    items = send.values.items if send.values is not None else 0
    return f"value {send.offset * items // send.nbytes}" if items else f"byte {send.offset}"


def _line(message: Message) -> str:
    """Return where a message was sent, in brackets."""
    place = short_line(message.send.line) if message.send is not None else ""
    return f" ({place})" if place else ""


# Tables of what differs


def _rows_by_round(yours: Sequence[Message], theirs: Sequence[Message]) -> list[tuple[str, str, str]]:
    """Return a row for each round that differs; nothing unless both fall into rounds."""
    try:
        mine, right = numbered(yours), numbered(theirs)
    except NoRoundsError:
        return []
    rows = []
    for number in sorted({*mine, *right}):
        in_mine, in_right = _transfers(mine.get(number, [])), _transfers(right.get(number, []))
        if in_mine != in_right:
            rows.append((f"round {number}", _text(in_mine, in_right), _text(in_right, in_mine)))
    return _table("", rows)


def _rows_by_link(yours: Sequence[Message], theirs: Sequence[Message]) -> list[tuple[str, str, str]]:
    """Return a row for each sender and receiver whose messages differ."""
    mine, right = _by_link(yours), _by_link(theirs)
    rows = []
    for link in sorted({*mine, *right}):
        in_mine, in_right = mine.get(link, []), right.get(link, [])
        if (len(in_mine), _nbytes(in_mine)) != (len(in_right), _nbytes(in_right)):
            rows.append((f"{link[0]} → {link[1]}", _amount(in_mine), _amount(in_right)))
    return _table("", rows)


def _rows_of_collectives(trace: Trace, expected: Trace) -> list[tuple[str, str, str]]:
    mine, right = _collectives(trace), _collectives(expected)
    return [
        (name, f"{mine[name]} times", f"{right[name]} times")
        for name in sorted({*mine, *right})
        if mine[name] != right[name]
    ]


def _table(what: str, rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    if len(rows) > MOST_ROWS:
        left_out = f"and {len(rows) - MOST_ROWS} more"
        rows = [*rows[:MOST_ROWS], (left_out, "", "")]
    return [(what, "yours", "one right way"), *rows] if rows else []


def _transfers(messages: Sequence[Message]) -> Counter[tuple[int, int, int]]:
    return Counter((message.source, message.dest, message.nbytes) for message in messages)


def _text(transfers: Counter[tuple[int, int, int]], others: Counter[tuple[int, int, int]]) -> str:
    """Return the transfers that are not among the others."""
    return ", ".join(_words(transfers - others)) or NOTHING


def _words(transfers: Counter[tuple[int, int, int]]) -> Iterator[str]:
    for (source, dest, nbytes), count in sorted(transfers.items()):
        times = f" ×{count}" if count > 1 else ""
        size = f" ({approx_size(nbytes)})" if nbytes >= 0 else ""
        yield f"{source} → {dest}{size}{times}"


def _amount(messages: Sequence[Message]) -> str:
    if not messages:
        return NOTHING
    return f"{counted(len(messages), 'message')}, {approx_size(_nbytes(messages))}"
