"""A hang report as a table, as data and as text: ranks as rows, the last collectives as columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from mpiwatch.flight_recorder.groups import ranks_in_short
from mpiwatch.flight_recorder.report import Activity, CallRecord, RankState, Report

MAX_COLUMNS = 6
MAX_ROWS = 16

_ABSENT_LABELS = {
    Activity.WAITING_IN_COLLECTIVE: "elsewhere",
    Activity.WAITING_FOR_MESSAGE: "in a message",
    Activity.IN_MPI_CALL: "in another call",
    Activity.RUNNING: "elsewhere",
    Activity.RETURNED: "returned",
    Activity.RAISED: "raised",
    Activity.NOT_STARTED: "not started",
    Activity.EXITED: "exited",
    Activity.DEAD: "dead",
    Activity.UNRESPONSIVE: "no response",
    Activity.UNREACHABLE: "unreachable",
}


class Status(Enum):
    """How far a rank got with a collective."""

    DONE = auto()
    WAITING = auto()
    ABSENT = auto()


@dataclass(frozen=True)
class Entry:
    """A rank and a collective: the rank's status there, and in words what it does."""

    status: Status
    label: str


@dataclass(frozen=True)
class Table:
    """The last collectives (`#2 Allreduce`) and, for each rank, one entry per collective."""

    columns: list[str]
    rows: dict[int, list[Entry]]

    def grouped(self) -> list[tuple[str, list[Entry]]]:
        """Return labelled rows: one for each rank, or if there are many, one for ranks with equal rows."""
        if len(self.rows) <= MAX_ROWS:
            return [(f"rank {rank}", entries) for rank, entries in self.rows.items()]
        found: dict[tuple[Entry, ...], list[int]] = {}
        for simplify in (_keep, _without_details):
            found = {}
            for rank, entries in self.rows.items():
                found.setdefault(tuple(map(simplify, entries)), []).append(rank)
            if len(found) <= MAX_ROWS:
                break
        shown = sorted(sorted(found.items(), key=lambda group: -len(group[1]))[:MAX_ROWS], key=_first_rank)
        rows = [(ranks_in_short(ranks), list(entries)) for entries, ranks in shown]
        left = len(self.rows) - sum(len(ranks) for _, ranks in shown)
        return [*rows, (f"{left} more", [])] if left else rows


def _keep(entry: Entry) -> Entry:
    return entry


def _without_details(entry: Entry) -> Entry:
    return Entry(entry.status, entry.label.partition(" (")[0])


def _first_rank(group: tuple[tuple[Entry, ...], list[int]]) -> int:
    return group[1][0]


def call_details(call: CallRecord) -> str:
    """Return what the ranks must agree on besides the operation: `10 float32, SUM, root 0`."""
    details = [
        "" if call.count is None or call.dtype is None else f"{call.count} {call.dtype}",
        call.dtype if call.count is None else "",
        call.reduction,
        "" if call.root is None else f"root {call.root}",
    ]
    return ", ".join(filter(None, details))


def table(report: Report) -> Table:
    """Return the table of a report; it has no columns if the report is not about a collective."""
    if report.communicator is None:
        return Table([], {rank.rank: [] for rank in report.ranks})
    operations: dict[int, list[str]] = {}
    for rank in report.ranks:
        for call in rank.calls:
            if call.communicator == report.communicator and call.number <= report.number:
                operations.setdefault(call.number, []).append(call.operation)
    numbers = sorted(operations)[-MAX_COLUMNS:]
    # The ranks may have called different operations under one number: the most frequent one names the column.
    names = {number: max(sorted(set(called)), key=called.count) for number, called in operations.items()}
    columns = [f"#{number} {names[number]}" for number in numbers]
    shown = [rank for rank in report.ranks if report.members is None or rank.rank in report.members]
    return Table(columns, {rank.rank: _row(report, rank, numbers) for rank in shown})


def _row(report: Report, rank: RankState, numbers: list[int]) -> list[Entry]:
    last = rank.last_call(report.communicator)
    row = []
    for number in numbers:
        if number < report.number or (last is not None and number < last.number):
            done = last is not None and number <= last.number
            row.append(Entry(Status.DONE, "done") if done else Entry(Status.ABSENT, ""))
        elif last is not None and last.number == number and report.is_waiting_here(rank):
            row.append(Entry(Status.WAITING, _waiting_label(report, last)))
        else:
            row.append(Entry(Status.ABSENT, _ABSENT_LABELS[rank.activity]))
    return row


def _waiting_label(report: Report, call: CallRecord) -> str:
    if report.mismatch is None:
        return "waiting"
    details = call_details(call)
    return f"waiting in {call.operation}" + (f" ({details})" if details else "")


def table_lines(report: Report) -> list[str]:
    """Return the table of the last collectives: `✓` for done, `waiting`, or what the rank does instead."""
    data = table(report)
    if not data.columns:
        return []
    lines = [["", *data.columns]]
    for ranks, entries in data.grouped():
        lines.append([ranks, *(_ENTRY[entry.status].format(entry.label).rstrip() for entry in entries)])
    lines = [[*line, *[""] * (1 + len(data.columns) - len(line))] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ("  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)) for line in lines)
    return [*(f"  {row}".rstrip() for row in rows), ""]


_ENTRY = {Status.DONE: "✓", Status.WAITING: "{}", Status.ABSENT: "– {}"}
