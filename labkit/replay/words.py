"""A recording in words: what cost the time, the traffic of each rank, and all events as a list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from labkit.replay.origins import origin_text
from labkit.text import counted, ranks_phrase
from labkit.units import approx_size, approx_time
from mpiwatch.trace import EVENTS, Event, Kind, Message, RankLog, Span, Trace

LEAST_PART = 0.1  # of the time: what takes less did not cost the time
SLOW_FACTOR = 3.0  # a link is slow if it takes so much longer for a byte than the others
LEAST_BYTES = 1 << 12  # of a message whose time says something about its link
LEAST_MESSAGES = 2  # on a link that is called slow
MOST_LINES = 400  # of the list of events
MOST_VALUES, FEW_VALUES = 16, 8  # of an array that are shown: in full if it has no more, else the first ones
SENDING = Kind.SEND, Kind.START_SEND
RECEIVING = Kind.RECEIVE, Kind.START_RECEIVE
COLLECTIVES = Kind.COLLECTIVE, Kind.START_COLLECTIVE


class Cause(NamedTuple):
    """Waits of ranks for the same ranks in calls of one name: how long, and the time that they cost."""

    waiting: tuple[int, ...]
    total_s: float
    spans: list[Span]


def short_line(line: str) -> str:
    """Return a line's place without its text: "line 7", "cell [3] line 4", "ring.py line 4".

    Of code that stands in no file, such as "<reference of ring>", the first word is enough.
    """
    place = line.rsplit(" via ", maxsplit=1)[-1].partition(": `")[0]
    name, is_line, number = place.rpartition(" line ")
    if name.startswith("<"):
        return f"{name[1:].split()[0].rstrip('>')}{is_line}{number}"
    return place.removeprefix("cell ") if place.startswith("cell line ") else place


def cost_sentence(trace: Trace) -> str:
    """Return one sentence that says what took the time."""
    spans = {rank: trace.spans(rank) for rank in trace.logs}
    duration_s = trace.end_s - trace.begin_s
    most_s = {"wait": 0.0, "transfer": 0.0}  # of one rank
    computed_s = 0.0  # of all ranks together
    for of_rank in spans.values():
        for activity, seconds in most_s.items():
            most_s[activity] = max(seconds, _total_s(of_rank, activity))
        computed_s += _total_s(of_rank, "compute")
    slow = _slow_link(trace)
    causes = _causes(spans)
    if slow and most_s["wait"] + most_s["transfer"] > LEAST_PART * duration_s:
        return slow
    if causes and most_s["wait"] >= max(most_s["transfer"] / 2, LEAST_PART * duration_s):
        return _wait_sentence(trace, spans, *causes[0])
    if most_s["transfer"] > LEAST_PART * duration_s:
        return _transfer_sentence(trace, most_s["transfer"], duration_s)
    percent = round(100 * computed_s / max(len(spans) * duration_s, 1e-12))
    return f"The ranks computed during {percent} % of the {approx_time(duration_s)}, and waited little."


def _total_s(spans: Sequence[Span], activity: str) -> float:
    """Return how long a rank computed, waited or transferred."""
    return sum(span.end_s - span.begin_s for span in spans if span.what == activity)


def _causes(spans: dict[int, list[Span]]) -> list[tuple[tuple[tuple[int, ...], str], Cause]]:
    """Return for which ranks others waited, in which calls, the longest wait first."""
    waits: dict[tuple[tuple[int, ...], str], list[Span]] = defaultdict(list)
    for of_rank in spans.values():
        for span in of_rank:
            if span.what == "wait" and span.event is not None and span.awaited:
                waits[span.awaited, span.event.operation].append(span)
    causes = {}
    for key, waiting_spans in waits.items():
        ranks = tuple(sorted({span.event.rank for span in waiting_spans if span.event is not None}))
        total_s = sum(span.end_s - span.begin_s for span in waiting_spans)
        causes[key] = Cause(ranks, total_s, waiting_spans)
    return sorted(causes.items(), key=lambda item: -item[1].total_s)


def _wait_sentence(
    trace: Trace, spans: dict[int, list[Span]], key: tuple[tuple[int, ...], str], cause: Cause
) -> str:
    """Return the sentence for ranks that waited for another one."""
    awaited, operation = key
    longest = max(cause.spans, key=lambda span: span.end_s - span.begin_s)
    assert longest.event is not None
    place = short_line(longest.event.line)
    where = f"{operation} ({place})" if place else operation
    waiting = ranks_phrase(cause.waiting)
    longest_s = longest.end_s - longest.begin_s
    if longest.event.never_ended:
        return f"{waiting} waited in {where} for {ranks_phrase(awaited)}, and the wait never ended."
    root, between = _last_of_chain(spans, awaited[0], longest)
    waiting = ranks_phrase([rank for rank in cause.waiting if rank != root])
    late_s = _begin_s(spans, root) - longest.begin_s
    if late_s > longest_s / 2:
        later = f"which began {approx_time(late_s)} later"
        return f"{waiting} waited in {where} for rank {root}, {later}{_through(between)}."
    busy_s = _computed_s(spans.get(root, []), longest.begin_s, longest.end_s)
    if busy_s > longest_s / 2:
        last = _last_call(trace, root, longest.end_s)
        computed = f"rank {root} computed {approx_time(busy_s)}" + (
            f" before {last}" if last != where else ""
        )
        return f"{computed} while {waiting} waited for it in {where}{_through(between)}."
    return (
        f"{waiting} waited up to {approx_time(longest_s)} in {where} for {ranks_phrase(awaited)}, "
        f"which was still in other calls."
    )


def _last_of_chain(spans: dict[int, list[Span]], rank: int, wait: Span) -> tuple[int, list[int]]:
    """Return the rank for which all wait in the end during a wait for `rank`, and the ranks in between."""
    between: list[int] = []
    while rank not in between:
        longest_s, following = (wait.end_s - wait.begin_s) / 2, rank
        for span in spans.get(rank, []):
            shared_s = min(span.end_s, wait.end_s) - max(span.begin_s, wait.begin_s)
            if span.what == "wait" and span.awaited and shared_s > longest_s:
                longest_s, following = shared_s, span.awaited[0]
        if following == rank:
            break
        between.append(rank)
        rank = following
    return rank, between


def _through(between: Sequence[int]) -> str:
    """Return the words for ranks that passed a wait on."""
    return f", through {ranks_phrase(between)}" if between else ""


def _begin_s(spans: dict[int, list[Span]], rank: int) -> float:
    """Return when a rank began with the cell."""
    return min((span.begin_s for span in spans.get(rank, [])), default=0.0)


def _last_call(trace: Trace, rank: int, time_s: float) -> str:
    """Return the last call of a rank that began before a time: "Send (line 6)"."""
    last = [event for event in trace.logs[rank].events if event.begin_s <= time_s][-1]
    place = short_line(last.line)
    return f"{last.operation} ({place})" if place else last.operation


def _computed_s(spans: Sequence[Span], begin_s: float, end_s: float) -> float:
    """Return how long a rank computed between two times."""
    parts = (min(span.end_s, end_s) - max(span.begin_s, begin_s) for span in spans if span.what == "compute")
    return sum(part for part in parts if part > 0)


def transfer_s(message: Message) -> float | None:
    """Return how long a message took once both ranks were there; None if that is not known."""
    if message.send is None or message.arrived_s is None or message.asked_s is None:
        return None
    return message.arrived_s - max(message.send.begin_s, message.asked_s)


def _slow_link(trace: Trace) -> str:
    """Return a sentence about a link whose messages all take much longer than those of others; else nothing.

    One that took long may have waited for a core.
    """
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for message in trace.messages:
        seconds = transfer_s(message)
        if seconds is not None and message.nbytes >= LEAST_BYTES and message.source != message.dest:
            times[message.source, message.dest].append(seconds / message.nbytes)
    medians = {
        link: median(seconds_per_byte)
        for link, seconds_per_byte in times.items()
        if len(seconds_per_byte) >= LEAST_MESSAGES
    }
    if len(medians) < 3:
        return ""
    slowest = max(medians, key=medians.__getitem__)
    others = [seconds for link, seconds in medians.items() if set(link) != set(slowest)]
    if not others or min(times[slowest]) < SLOW_FACTOR * max(others):
        return ""
    source, dest = slowest
    sizes = [m.nbytes for m in trace.messages if (m.source, m.dest) == slowest]
    factor = medians[slowest] / max(median(others), 1e-15)
    return (
        f"The {counted(len(sizes), 'message')} from rank {source} to rank {dest} took about "
        f"{factor:.0f} times as long for each byte as those between other ranks: a slow link."
    )


def _transfer_sentence(trace: Trace, transfer: float, duration_s: float) -> str:
    """Return the sentence for ranks that spent their time in transfers."""
    percent = round(100 * transfer / max(duration_s, 1e-12))
    what = []
    if trace.messages:
        nbytes = sum(max(0, message.nbytes) for message in trace.messages)
        what.append(f"{counted(len(trace.messages), 'message')} of {approx_size(nbytes)} in all")
    if trace.collectives:
        what.append(counted(len(trace.collectives), "collective"))
    return f"Transfers took up to {percent} % of the {approx_time(duration_s)}: {' and '.join(what)}."


def traffic_rows(trace: Trace) -> list[tuple[str, ...]]:
    """Return the rows of the table of traffic, with its head: messages, collectives and bytes, as counted."""
    rows: list[tuple[str, ...]] = [
        (
            "",
            "messages sent",
            "bytes sent",
            "messages received",
            "bytes received",
            "collectives",
            "bytes given to them",
            "computed",
            "waited",
            "transferred",
        )
    ]
    for rank in range(trace.size):
        sent = [m for m in trace.messages if m.source == rank and m.send is not None]
        received = [m for m in trace.messages if m.dest == rank and m.arrived_s is not None]
        spans = trace.spans(rank) if rank in trace.logs else []
        times = (approx_time(_total_s(spans, activity)) for activity in ("compute", "wait", "transfer"))
        calls = _collective_calls(trace, rank)
        rows.append((f"rank {rank}", *_counts(sent), *_counts(received), *_counts(calls), *times))
    return rows


def _collective_calls(trace: Trace, rank: int) -> list[Event]:
    """Return a rank's calls of collectives."""
    return [collective.calls[rank] for collective in trace.collectives if rank in collective.calls]


def _counts(messages: Sequence[Message | Event]) -> tuple[str, str]:
    return str(len(messages)), f"{sum(max(0, message.nbytes) for message in messages):,}"


TOO_LARGE = "the message is too large for its receive"


def plain_error(error: str) -> str:
    """Return an error without MPI's words on a message that had no room: they may name the sizes reversed."""
    before, truncated, _ = error.partition("Message truncated")
    return f"{before}{TOO_LARGE}" if truncated else error


def failed_receive(trace: Trace, message: Message) -> str:
    """Return the error of the receive, or of the wait for it, that has failed for a message; else nothing."""
    log = trace.logs.get(message.dest)
    if log is None or message.arrived_s is not None:
        return ""
    for event in log.events:
        is_receive = event.kind in RECEIVING or (event.kind is Kind.WAIT and not event.is_of_send)
        if is_receive and event.has_failed and event.error and event.peer == message.source:
            return event.error
    return ""


def is_too_large(error: str) -> bool:
    """Return whether an error says that a message had no room."""
    return "truncated" in error or "has room for" in error or "too large" in error


def has_failed(log: RankLog) -> bool:
    """Return whether a rank has ended with an error, or in a call that never returned."""
    return any(event.kind is Kind.RAISED or event.never_ended for event in log.events)


def event_text(event: Event) -> str:
    """Return what a call is: `Send to rank 1, tag 3, 80 bytes`."""
    parts = [event.operation]
    if event.peer >= 0 and (event.kind in SENDING or event.is_of_send):
        parts.append(f" to rank {event.peer}")
    elif event.peer >= 0:
        parts.append(f" from rank {event.peer}")
    elif event.kind in (*RECEIVING, Kind.PROBE):
        parts.append(" from any rank")
    if event.tag > 0:
        parts.append(f", tag {event.tag}")
    if event.root >= 0:
        parts.append(f", root {event.root}")
    if event.nbytes >= 0:
        parts.append(f", {approx_size(event.nbytes)}")
    return "".join(parts)


def values_text(event: Event, size: int = 0) -> str:
    """Return the first values of the buffer of a call; with a `size`, also whose contributions they are.

    `size`: the number of ranks, if the digits of the values say it.
    """
    values = event.values
    if values is None:
        return ""
    if values.text:
        return values.text
    most = MOST_VALUES if values.items <= MOST_VALUES else FEW_VALUES
    shown = [f"{value:.8g}" if isinstance(value, float) else str(value) for value in values.first[:most]]
    if values.items > len(shown):
        shown.append(f"… {values.items} values")
    origin = origin_text(values, size) if size else ""
    return f"[{', '.join(shown)}]{f' {origin}' if origin else ''}"


def event_lines(trace: Trace) -> list[str]:
    """Return all events as text, in the order of their times."""
    events = sorted(
        (event for log in trace.logs.values() for event in log.events), key=lambda event: event.begin_s
    )
    lines = []
    for event in events[:MOST_LINES]:
        at = approx_time(event.begin_s - trace.begin_s)
        if event.kind is Kind.COMPLETE:
            text = f"completes the request of call {event.request}"
        elif event.kind is Kind.RAISED:
            text = f"ends with {plain_error(event.error)}"
        elif event.end_s is None or event.never_ended:
            text = f"{event_text(event)}: did not end"
        elif event.has_failed:
            text = f"{event_text(event)}: raised {plain_error(event.error)}"
        else:
            text = f"{event_text(event)}, for {approx_time(event.end_s - event.begin_s)}"
        place = f" at {event.line}" if event.line else ""
        lines.append(f"{at}: rank {event.rank}: {text}{place}")
    if len(events) > MOST_LINES:
        lines.append(f"… and {len(events) - MOST_LINES} more events")
    return lines


def notes(trace: Trace) -> list[str]:
    """Return sentences about the recording itself: what it cost, what is missing, how exact its times are."""
    duration_s = max(trace.end_s - trace.begin_s, 1e-12)
    own_s = max((log.own_s for log in trace.logs.values()), default=0.0)
    percent = f"{100 * own_s / duration_s:.1f} %"
    texts = [
        f"Recording took {approx_time(own_s)} of {approx_time(duration_s)} ({percent}), on the rank where it "
        "took longest. The picture shows the order of this one run; another run may differ."
    ]
    if trace.collectives:
        texts.append(
            "A collective counts with the bytes that the rank gives to it; the messages that the MPI library "
            "sends inside it cannot be seen."
        )
    for rank, lost in trace.lost.items():
        texts.append(f"Rank {rank}: recording stopped after {EVENTS:,} events; {lost:,} are missing.")
    if trace.lost_ranks:
        texts.append(f"There is no recording of {ranks_phrase(trace.lost_ranks)}.")
    if trace.clock_error_s > 0:
        texts.append(
            "The clocks of different machines were compared: their times may differ by "
            f"{approx_time(trace.clock_error_s)}."
        )
    return texts
