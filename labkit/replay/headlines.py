"""The sentences above a replay, the most important one first: the fault, and last what cost the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from labkit.replay.case import CaseNotes
from labkit.replay.compare import SAME, Comparison, has_ended_early
from labkit.replay.under_way import misuses
from labkit.replay.words import cost_sentence, short_line
from labkit.text import ranks_phrase
from labkit.units import approx_size
from mpiwatch.trace import Event, Kind, Trace

LONG_S = 1.0  # a case that takes less is about what is right, not about time
STARTS = Kind.START_SEND, Kind.START_RECEIVE, Kind.START_COLLECTIVE


def headlines(trace: Trace, report: str, comparison: Comparison | None, case: CaseNotes) -> list[str]:
    """Return the sentences, the fault first. `report`: why the cell has failed; empty if it ended well."""
    first = report.strip().partition("\n")[0]
    about = [f"{first}{_where_raised(trace)}"] if first else []
    about += [*_too_long(trace), *misuses(trace)]
    if not has_ended_early(trace):
        about += never_waited_for(trace)
    if case.values:
        about.append(case.values)
    elif case.finding and not report:
        finding = case.finding.rstrip(".")
        about.append(f"In this run, no value is seen to be wrong. The check has found: {finding}.")
    if comparison is not None and comparison.sentence:
        is_known = bool(case.values or case.finding)
        about.append(SAME if comparison.is_alike and is_known else comparison.sentence)
    if not report and (not case.ranks or trace.end_s - trace.begin_s > LONG_S):
        cost = cost_sentence(trace)
        about = [*about, cost] if case.ranks else [cost, *about]
    return about


def _too_long(trace: Trace) -> Iterator[str]:
    """Yield a sentence for a message that had no room: MPI's own error may name the sizes in wrong order."""
    for message in trace.messages:
        if message.send is None or message.arrived_s is not None or message.dest not in trace.logs:
            continue
        events = trace.logs[message.dest].events
        errors = [event.error for event in events if event.has_failed and event.peer == message.source]
        if any("truncated" in error for error in errors):
            place = short_line(message.send.line)
            where = f" ({place})" if place else ""
            yield (
                f"Rank {message.source} sends {approx_size(message.nbytes)} to rank {message.dest}{where}; "
                "the buffer of that receive has less room."
            )
            return


def _where_raised(trace: Trace) -> str:
    """Return in which call, on which line, the first error was raised: ", in Sendrecv (cell [3] line 7)"."""
    raised = [event for log in trace.logs.values() for event in log.events if event.kind is Kind.RAISED]
    if not raised:
        return ""
    error = min(raised, key=lambda event: event.begin_s)
    failed = _failed_call(trace, error)
    place = short_line((failed or error).line)
    if failed is None:
        return f", at {place}" if place else ""
    return f", in {failed.operation} ({place})" if place else f", in {failed.operation}"


def _failed_call(trace: Trace, error: Event) -> Event | None:
    events = trace.logs[error.rank].events
    return next((event for event in events if event.has_failed and event.kind is not Kind.RAISED), None)


def never_waited_for(trace: Trace) -> Iterator[str]:
    """Yield a sentence for each call whose requests no rank has waited for, with the ranks."""
    ranks_of: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, log in trace.logs.items():
        over = {event.request for event in log.events if event.kind in (Kind.COMPLETE, Kind.CANCELLED)}
        for event in log.events:
            if event.kind in STARTS and event.request and event.request not in over and not event.has_failed:
                ranks_of[event.operation, short_line(event.line)].add(rank)
    for (operation, place), ranks in ranks_of.items():
        call = f"{operation} ({place})" if place else operation
        who = ranks_phrase(sorted(ranks))
        yield f"{who[0].upper()}{who[1:]}: the request of {call} is never waited for."
