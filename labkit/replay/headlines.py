"""The sentences above a replay, the most important one first: the fault, and last what cost the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from labkit.replay.case import CaseNotes
from labkit.replay.compare import SAME, Comparison, has_ended_early
from labkit.replay.under_way import misuses
from labkit.replay.words import cost_sentence, plain_error, short_line
from labkit.text import ranks_phrase
from labkit.units import approx_size
from mpiwatch.trace import Event, Kind, Trace

HANG = "the ranks hang"  # in what a check finds
IN_SEND = "is waiting in Send ("
WHOLE_ARRAYS = "allreduce", "bcast", "reduce"
MOST_NUMBERS = 8
MOST_ITEMS = 10_000  # of the array of a case
LONG_S = 1.0  # a case that takes less is about what is right, not about time
STARTS = Kind.START_SEND, Kind.START_RECEIVE, Kind.START_COLLECTIVE


def headlines(trace: Trace, report: str, comparison: Comparison | None, case: CaseNotes) -> list[str]:
    """Return the sentences, the fault first. `report`: why the cell has failed; empty if it ended well."""
    first = plain_error(report.strip().partition("\n")[0])
    about = [f"{first}{_where_raised(trace)}"] if first else []
    about += [*_too_long(trace), *misuses(trace)]
    if not has_ended_early(trace):
        about += never_waited_for(trace)
    if case.values:
        about += [case.values, *left_out_values(trace)]
    elif case.finding and not report:
        about.append(_finding_sentence(trace, case.finding.rstrip(".")))
    if comparison is not None and comparison.sentence:
        is_known = bool(case.values or case.finding)
        about.append(SAME if comparison.is_alike and is_known else comparison.sentence)
    if not report and (not case.ranks or trace.end_s - trace.begin_s > LONG_S):
        cost = cost_sentence(trace)
        about = [*about, cost] if case.ranks else [cost, *about]
    return about


def is_explained(trace: Trace, report: str, case: CaseNotes) -> bool:
    """Return whether it is known why a cell went wrong, so that other messages are only a consequence."""
    has_raised = any(event.kind is Kind.RAISED for log in trace.logs.values() for event in log.events)
    return has_raised or bool(report) or (HANG in case.finding and not case.values)


def _finding_sentence(trace: Trace, finding: str) -> str:
    """Return what the check has found, of a run that has ended with right values."""
    if HANG in finding and not has_ended_early(trace):
        may_hang = "the ranks hang if Send does not buffer" if IN_SEND in finding else "the ranks can hang"
        return f"The check has found: {finding.replace(HANG, may_hang)}. This run got through."
    return f"The check has found: {finding}."


def left_out_values(trace: Trace) -> Iterator[str]:
    """Yield a sentence for the first rank of whose array only a part was in collectives.

    Only collectives count that take the same part of each rank's array.
    """
    for rank, log in trace.logs.items():
        calls = [event for event in log.events if event.operation.lstrip("I").lower() in WHOLE_ARRAYS]
        calls = [event for event in calls if event.whole > 0 and event.values and event.values.items > 0]
        arrays = {(event.address - event.offset, event.whole) for event in calls}
        if len(arrays) != 1:
            continue
        item = calls[0].nbytes // calls[0].values.items if calls[0].values else 0
        if item < 1 or calls[0].whole // item > MOST_ITEMS:
            continue
        covered = {
            number
            for event in calls
            for number in range(event.offset // item, (event.offset + event.nbytes) // item)
        }
        left_out = [number for number in range(calls[0].whole // item) if number not in covered]
        if left_out:
            were = "was" if len(left_out) == 1 else "were"
            names = list(dict.fromkeys(event.operation for event in calls))
            calls_text = f"{len(calls)} calls" if len(calls) > 1 else "the call"
            yield (
                f"{_numbers_text(left_out)} of rank {rank}'s array of {calls[0].whole // item} {were} in no "
                f"{' or '.join(names)}: {calls_text} took the others."
            )
            return


def _numbers_text(numbers: Sequence[int]) -> str:
    """Return "Value 3", "Values 3–5" or "Values 3, 5, …"."""
    if len(numbers) == 1:
        return f"Value {numbers[0]}"
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"Values {numbers[0]}–{numbers[-1]}"
    shown = ", ".join(map(str, numbers[:MOST_NUMBERS]))
    return f"Values {shown}{', …' if len(numbers) > MOST_NUMBERS else ''}"


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
