"""Arrays that a program uses while a message into or out of them is under way: a sentence for each place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from labkit.replay.words import short_line
from mpiwatch.trace import Event, Kind, Trace

MOST_SENTENCES = 3


class Use(NamedTuple):
    """The time in which MPI reads or writes a part of a rank's memory, and the call that began it."""

    begin_s: float
    end_s: float
    first: int
    stop: int
    event: Event
    is_send: bool


def misuses(trace: Trace) -> list[str]:
    """Return sentences about arrays that are overwritten, or sent, before a request for them is complete."""
    sentences = list(dict.fromkeys(text for rank in trace.logs for text in _of_rank(trace, rank)))
    return sentences[:MOST_SENTENCES]


def _of_rank(trace: Trace, rank: int) -> Iterator[str]:
    active: list[Use] = []
    for use in sorted(_uses(trace, rank), key=lambda use: use.begin_s):
        active = [other for other in active if other.end_s > use.begin_s]
        for other in active:
            if use.first < other.stop and other.first < use.stop and use.event.number != other.event.number:
                yield from _sentence(rank, other, use)
        active.append(use)
    yield from _changed(trace, rank)


def _sentence(rank: int, before: Use, after: Use) -> Iterator[str]:
    """Yield what is wrong if a call uses memory that an earlier one still uses; two sends are right."""
    if before.is_send and not after.is_send:
        yield (
            f"Rank {rank}: {_name(after.event)} writes into the array that {_name(before.event)} is still "
            "sending. Wait for that request first."
        )
    elif after.is_send and not before.is_send:
        yield (
            f"Rank {rank}: {_name(after.event)} sends what {_name(before.event)} is still receiving. Wait "
            "for that request first."
        )
    elif not before.is_send:
        both = f"{_name(before.event)} and {_name(after.event)}"
        yield f"Rank {rank}: {both} write into the same part of an array at the same time."


def _uses(trace: Trace, rank: int) -> Iterator[Use]:
    """Yield the times in which MPI uses a part of a rank's memory, as far as it is known."""
    log = trace.logs[rank]
    ends = {event.request: event for event in log.events if event.kind in (Kind.COMPLETE, Kind.CANCELLED)}
    for event in log.events:
        if not event.address or event.has_failed:
            continue
        is_send = event.kind in (Kind.SEND, Kind.START_SEND)
        if event.kind in (Kind.START_SEND, Kind.START_RECEIVE):
            end = ends.get(event.request)
            end_s = trace.end_of(rank) if end is None or end.end_s is None else end.end_s
            nbytes = event.nbytes if is_send or end is None else end.nbytes
        elif event.kind in (Kind.SEND, Kind.RECEIVE) and event.end_s is not None:
            end_s, nbytes = event.end_s, event.nbytes
        else:
            continue
        if nbytes > 0:
            yield Use(event.begin_s, end_s, event.address, event.address + nbytes, event, is_send)


def _changed(trace: Trace, rank: int) -> Iterator[str]:
    """Yield where the values of an array have changed between the start of its send and the wait for it."""
    log = trace.logs[rank]
    starts = {event.request: event for event in log.events if event.kind is Kind.START_SEND}
    for event in log.events:
        start = starts.get(event.request) if event.kind is Kind.COMPLETE and event.is_of_send else None
        if start is None or start.values is None or event.values is None:
            continue
        if repr(start.values) != repr(event.values):  # NaN equals NaN here
            yield (
                f"Rank {rank}: the array that {_name(start)} sends was changed before {_name(event)} saw the "
                "send complete. Change it after the wait."
            )


def _name(event: Event) -> str:
    """Return a call with its line: "Isend (line 6)"."""
    place = short_line(event.line)
    return f"{event.operation} ({place})" if place else event.operation
