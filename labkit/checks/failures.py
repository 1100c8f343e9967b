"""Findings about a job that did not come to its end: errors, hangs, endless loops, ranks that died."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from labkit.checks.exercise import Case, Exercise, Fault
from labkit.checks.launching import HANG_S, TOO_MUCH, Run
from labkit.checks.transport import CELL
from labkit.text import lines_of, ranks_phrase
from mpiwatch.report import Activity, FindingKind, Reason, Report, rank_lines, title

SHOWN_GROUPS = 3
SHOWN_PLACES = 2
SIGNALLED = 128  # an exit code above it is that of a process that a signal has killed


class CheckFailed(Exception):
    """The check itself could not be carried out: nothing is known about the function."""


def finding(  # noqa: PLR0911 (a return for each kind)
    run: Run, text: str, exercise: Exercise, cases: Sequence[Case]
) -> str | None:
    """Return why the job did not come to its end; None if it did. Raise CheckFailed if it is not known."""
    if run.unreadable:
        raise CheckFailed(f"the job's results were changed or damaged ({run.unreadable})")

    def subject(number: int, rank: int | None = None) -> str:
        if not 0 <= number < len(cases):
            return ""
        on_rank = f", on rank {rank}" if exercise.on_ranks and rank is not None else ""
        return f"with {cases[number].label}{on_rank}"

    def where(number: int, rank: int | None = None) -> str:
        return f"{subject(number, rank)}: " if subject(number, rank) else ""

    records = [(rank, record) for rank, of_rank in enumerate(run.records) for record in of_rank]
    lines, failed = lines_of(text), _errors(records)
    if failed:
        number, rank, error = min(failed, key=lambda failure: failure[:2])
        return where(number, rank) + _error(error, lines)
    if run.excess:
        advice = "" if run.excess == TOO_MUCH else ". Look for a loop that does not end"
        return f"it {run.excess}{advice}"
    if run.is_complete:
        return None
    begun = max((record["begin"] for _, record in records if "begin" in record), default=-1)
    # A rank that MPI has ended for a broken rule could not hand in its faults at the end of the case.
    noted = [[Fault(*record["fault"]) for record in of_rank if "fault" in record] for of_rank in run.records]
    noted = noted[: cases[begun].ranks if where(begun) else None]
    if run.status is not None and any(noted):
        return f"{subject(begun)}, {broken_rule(noted)}"
    was_late = any(run.stacks) and run.status is None  # then ranks were ended one after the other
    if run.report is not None and not was_late:
        return where(begun) + _hang(run.report, cases[begun].ranks if where(begun) else len(run.records))
    if any(run.stacks):
        return where(begun) + _endless(run.stacks, lines, exercise)
    if run.status is not None and any("cell" in record for _, record in records):
        how = (
            "" if exercise.on_ranks else _exit(run.status)
        )  # mpiexec's code may be of a rank that it has ended
        return f"{where(begun)}it ends its process{how}. A function returns: it does not exit"
    printed = [line.strip() for line in run.output.splitlines() if line.strip()]
    how = "the job was too slow" if run.status is None else f"the job ended with exit code {run.status}"
    said = " / ".join(printed[-3:])[:400]
    raise CheckFailed(f"{how}: {said}" if said else how)


def _errors(records: Iterable[tuple[int, dict[str, Any]]]) -> list[tuple[int, int, Any]]:
    """Return the errors of the student's code: case, rank, error. Raise CheckFailed for one of the check."""
    errors = []
    for rank, record in records:
        if "check" in record:
            raise CheckFailed(f"{record['check']['type']}: {record['check']['text']}")
        if "error" in record:
            errors.append((record.get("case", -1), rank, record["error"]))
    return errors


def _exit(status: int) -> str:
    return f" with signal {status - SIGNALLED}" if status > SIGNALLED else f" with exit code {status}"


# What a student should do about an error that strict mode has found, by the name of its kind.
ADVICE = {
    FindingKind.SEND_NOT_COMPLETED.name: (
        "The array may still be sent when the caller changes it: wait for the request"
    ),
    FindingKind.RECEIVE_NOT_COMPLETED.name: "The array may be filled later, or never: wait for the request",
    FindingKind.COLLECTIVE_NOT_COMPLETED.name: (
        "Its arrays may still be read or written when the function has returned: wait for it"
    ),
    FindingKind.BUFFER_CHANGED.name: (
        "MPI may read the array until the request is complete: wait first, or send a copy"
    ),
    FindingKind.MEMORY_IN_USE.name: "Until that call is complete, use another array, or wait for it first",
}


def broken_rule(by_rank: Sequence[Sequence[Fault]]) -> str:
    """Return the first fault that strict mode has found, with ranks, line and what follows; or nothing."""
    first = next((fault for faults in by_rank for fault in faults), None)
    if first is None:
        return ""
    if not first.place:
        return first.text
    ranks = [rank for rank, faults in enumerate(by_rank) if first in faults]
    sentence = f"on {ranks_phrase(ranks)}: {first.text} ({first.place})"
    advice = ADVICE.get(first.kind)
    return f"{sentence}. {advice}" if advice else sentence


def below(run: Run, text: str) -> str:
    """Return the error that a line of the cell below the function has raised; empty if there is none."""
    errors = [record["below"] for records in run.records for record in records if "below" in record]
    if not errors:
        return ""
    at = _line(errors[0]["line"], lines_of(text))
    return f"below the function, your cell raises {errors[0]['type']}: {errors[0]['text']}{at}"


def _error(error: dict[str, Any], lines: list[str]) -> str:
    text = f"{error['type']}: {error['text']}" if error["text"] else error["type"]
    at = _line(error["line"], lines)
    if error["type"] == "StrictError":  # it names its own line
        return str(error["text"])
    if error["result_type"]:
        return f"its result is of type {error['result_type']} and cannot be used ({text})"
    if error["type"] == "SystemExit":
        return f"it calls exit{at}. A function returns: it does not exit"
    if error["type"] == "NameError" and error["name"]:
        return (
            f"the name `{error['name']}` is not defined{at}. "
            "The check knows your cells' functions and no other variable: define in this cell, or import, "
            "what it uses"
        )
    return f"{text}{at}"


def _line(number: int, lines: list[str]) -> str:
    if not 0 < number <= len(lines):
        return ""
    return f" at line {number}: `{lines[number - 1].strip()}`"


def _hang(data: dict[str, Any], size: int) -> str:
    try:
        report = Report.from_json(json.dumps(data).encode())
        states = tuple(rank for rank in report.ranks if rank.rank < size)
        report = replace(report, ranks=states, world_size=size)
        if report.reason is Reason.RANK_DIED:
            dead = next(rank for rank in report.ranks if rank.rank == report.reporter)
            at = f" at {dead.place}" if dead.place else ""
            if dead.exit_code is None or dead.exit_code > SIGNALLED:
                return f"rank {dead.rank} {dead.error or 'died'}{at}"
            how = f"ended its process with exit code {dead.exit_code}"
            return f"rank {dead.rank} {how}{at}. A function returns: it does not exit"
        groups = [line.strip() for line in rank_lines(report, in_cell=False)[:SHOWN_GROUPS]]
        waits = any(rank.activity is not Activity.RUNNING for rank in report.ranks)
        sentences = [title(report), "; ".join(groups)] if waits else [title(report)]
        return f"the ranks hang. {'. '.join(map(_clause, sentences))}"
    except (KeyError, TypeError, ValueError, StopIteration, IndexError, AssertionError):
        return f"the ranks hang: they wait for each other for more than {HANG_S:g} s"


def _clause(text: str) -> str:
    """Return a sentence with a capital letter and without its full stop."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".")


def _endless(stacks: list[str], lines: list[str], exercise: Exercise) -> str:
    places, shown_lines = [], []
    for rank, stack in enumerate(stacks):
        match = re.search(rf'File "{re.escape(CELL)}", line (\d+)', stack)
        if match is not None:
            subject = f"rank {rank} is" if exercise.on_ranks else "it is"
            places.append(subject + _line(int(match[1]), lines))
            shown_lines += lines[int(match[1]) - 1 : int(match[1])]
    sentence = f"it does not end within {exercise.deadline_s:g} s"
    if places:
        sentence += f": {'; '.join(places[:SHOWN_PLACES])}"
    advice = "Look for a loop that does not end"
    if any(re.search(r"\.[Tt]est\w*\(", line) for line in shown_lines[:SHOWN_PLACES]):
        advice = "A loop of `Test()` waits as `Wait()` does: test once, go on, and test again later"
    return f"{sentence}. {advice}"
