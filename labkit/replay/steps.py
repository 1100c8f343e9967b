"""The steps of a replay: each begin and end of a call, with what the ranks do and hold then."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from labkit.replay.parts import has_powers
from labkit.replay.picture import Picture
from labkit.replay.sources import shown_lines
from labkit.replay.words import (
    COLLECTIVES,
    RECEIVING,
    SENDING,
    event_text,
    failed_receive,
    plain_error,
    values_text,
)
from labkit.units import approx_size, approx_time
from mpiwatch.trace import Event, Kind, Message, Trace

MOST_STEPS = 1000
BLOCKING = Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE, Kind.WAIT, Kind.PROBE


class Change(NamedTuple):
    """What changes at a time on a rank: where it is, what it does, and what a buffer holds from now on."""

    time_s: float
    rank: int
    line: int  # the row of the shown lines; 0 if it is elsewhere
    text: str
    values: str


def line_in_cell(line: str) -> int:
    """Return the number of the cell's line that made a call; 0 if no line of the cell is named."""
    match = re.match(r"cell line (\d+)", line)
    return int(match[1]) if match else 0


def changes(trace: Trace, row_of: Callable[[str], int] = line_in_cell) -> list[Change]:
    """Return what changes, in the order of the times. `row_of` returns the row of a call's line."""
    size = trace.size if has_powers(trace) else 0
    all_changes = [
        change
        for log in trace.logs.values()
        for event in log.events
        for change in _of_event(event, size, row_of)
    ]
    for rank, log in trace.logs.items():  # a rank that has ended computes no longer
        has_raised = any(event.kind is Kind.RAISED or event.never_ended for event in log.events)
        if log.end_s is not None and not has_raised and log.end_s <= trace.end_s:
            all_changes.append(Change(log.end_s, rank, 0, "has ended", ""))
    return sorted(all_changes, key=lambda change: change.time_s)


def _of_event(event: Event, size: int, row_of: Callable[[str], int]) -> Iterator[Change]:
    line, text = row_of(event.line), event_text(event)
    values = values_text(event, size)
    if event.kind in (Kind.COMPLETE, Kind.CANCELLED):
        if event.end_s is not None:
            yield Change(event.end_s, event.rank, line, f"{event.operation}: the request is complete", values)
        return
    if event.kind is Kind.RAISED:
        yield Change(event.begin_s, event.rank, line, f"has ended with {plain_error(event.error)}", "")
        return
    if event.kind not in BLOCKING:
        words = f"starts {text}"
        yield Change(event.begin_s, event.rank, line, words, values)
        return
    sends = event.kind in SENDING
    yield Change(event.begin_s, event.rank, line, f"in {text}", values if sends else "")
    if event.end_s is not None and not event.has_failed:
        held = values if event.kind in (*RECEIVING, *COLLECTIVES) else ""
        yield Change(event.end_s, event.rank, line, f"computes, after {text}", held)
    elif event.end_s is not None:
        ending = f"raised {plain_error(event.error)}" if event.error else "never ended"
        yield Change(event.end_s, event.rank, line, f"{text} {ending}", "")


def data_for_script(picture: Picture, source: str, cells: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what the script needs to show each step: plain data, for JSON.

    `source`: the text of the cell. `cells`: those of earlier cells whose functions it has called, by number.
    """
    trace = picture.trace
    lines = shown_lines(trace, source, cells or {})
    all_changes = changes(trace, lines.row_of)
    left_out = max(0, len(all_changes) - MOST_STEPS)
    texts: dict[str, int] = {}
    steps = []
    for change in all_changes[:MOST_STEPS]:
        text = texts.setdefault(change.text, len(texts))
        values = texts.setdefault(change.values, len(texts)) if change.values else -1
        place = round(picture.axis.x(change.time_s), 1)
        steps.append(
            [place, change.rank, change.line, text, values, approx_time(change.time_s - trace.begin_s)]
        )
    times = [change.time_s for change in all_changes[:MOST_STEPS]]
    return {
        "size": trace.size,
        "source": lines.rows,
        "texts": list(texts),
        "steps": steps,
        "messages": list(_under_way(picture, times)),
        "left_out": left_out,
    }


def _under_way(picture: Picture, times: list[float]) -> Iterator[list[Any]]:
    """Yield each message with the first and the last step at which it is under way; -1: to the end."""
    for message in picture.messages:
        if message.left_s is None or not times or message.left_s > times[-1]:
            continue
        first = bisect_left(times, message.left_s)
        last = -1
        if message.arrived_s is not None and message.arrived_s <= times[-1]:
            last = bisect_left(times, message.arrived_s)
        size = approx_size(message.nbytes) if message.nbytes >= 0 else "an object"
        asked = ""
        if message.asked_s is None or failed_receive(picture.trace, message):
            asked = _not_received(picture.trace, message)
        yield [first, last, f"{message.source} → {message.dest}: {size}, tag {message.tag}{asked}"]


def _not_received(trace: Trace, message: Message) -> str:
    """Return why a message was not received: the receive has failed, or there was none."""
    if failed_receive(trace, message):
        return f": the receive of rank {message.dest} has failed"
    return ", which nobody has asked for"
