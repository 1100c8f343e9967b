"""What is known of the case that a cell has run with `run_case`, beside its recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mpiwatch.trace import Event, Kind, RankLog


class CaseNotes(NamedTuple):
    """What the ranks say of a case.

    `ranks`: how many it needs; 0 if the cell has run none. `values`: how the first rank's result that is
    wrong differs from the right one; empty if none does. `finding`: what the check has found. `inputs`: what
    the function gets, in a line.
    """

    ranks: int = 0
    values: str = ""
    finding: str = ""
    inputs: str = ""


def notes_of(by_rank: Mapping[int, Mapping[str, Any]]) -> CaseNotes:
    """Return what the ranks' notes (`watching.take_notes`) say together."""
    ranks = max((of_rank.get("ranks", 0) for of_rank in by_rank.values()), default=0)
    values = [of_rank["values"] for _, of_rank in sorted(by_rank.items()) if of_rank.get("values")]
    findings = [of_rank["finding"] for _, of_rank in sorted(by_rank.items()) if of_rank.get("finding")]
    inputs = [of_rank["inputs"] for _, of_rank in sorted(by_rank.items()) if of_rank.get("inputs")]
    return CaseNotes(ranks, *(texts[0] if texts else "" for texts in (values, findings, inputs)))


def logs_of_case(
    logs: Sequence[RankLog], case: CaseNotes, by_rank: Mapping[int, Mapping[str, Any]]
) -> list[RankLog]:
    """Return the recordings of the ranks that a case needs, from the first call to each rank's last one.

    Without a case, return all recordings as they are.
    """
    if not case.ranks:
        return list(logs)
    needed = [log._replace(size=case.ranks) for log in logs if log.rank < case.ranks]
    begins = [event.begin_s for log in needed for event in log.events if event.kind is not Kind.RAISED]
    first_s = min(begins, default=0.0)
    return [_cut(log, first_s, by_rank.get(log.rank, {}).get("ended_s")) for log in needed]


def _cut(log: RankLog, first_s: float, ended_s: float | None) -> RankLog:
    """Return a recording that begins with the first call and ends with the rank's function."""
    calls = [event for event in log.events if event.kind is not Kind.RAISED]
    begin_s = max(log.begin_s, first_s)
    if log.end_s is None or any(event.never_ended for event in calls):
        return log._replace(begin_s=min([begin_s, *[event.begin_s for event in log.events]]))
    last_s = max([begin_s, *[event.end_s or event.begin_s for event in calls]])
    if ended_s is not None and last_s <= ended_s <= log.end_s:
        last_s = ended_s
    events = [_not_after(event, last_s) for event in log.events]
    return log._replace(begin_s=min(begin_s, last_s), end_s=last_s, events=events)


def _not_after(event: Event, last_s: float) -> Event:
    """Return an error at the time when the function ended: the rank notes it when it has been written out."""
    if event.kind is not Kind.RAISED:
        return event
    return event._replace(begin_s=last_s, end_s=last_s)
