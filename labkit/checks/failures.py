"""Findings about a job that did not come to its end: errors, hangs, endless loops, ranks that died."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit.checks.exercise import Case, Exercise, Fault
from labkit.checks.launching import HANG_S, Run
from labkit.checks.transport import CELL
from labkit.text import ranks_phrase
from mpiwatch.report import Activity, Reason, Report, rank_lines, title

SHOWN_GROUPS = 3


class CheckFailed(Exception):
    """The check itself could not be carried out: nothing is known about the function."""


def finding(  # noqa: PLR0911 (a return for each kind)
    run: Run, text: str, exercise: Exercise, cases: Sequence[Case]
) -> str | None:
    """Return why the job did not come to its end; None if it did. Raise CheckFailed if it is not known."""
    if run.unreadable:
        raise CheckFailed(f"the job's results were changed or damaged ({run.unreadable})")

    def where(number: int, rank: int | None = None) -> str:
        on_rank = f", on rank {rank}" if exercise.on_ranks and rank is not None else ""
        return f"with {cases[number].label}{on_rank}: " if 0 <= number < len(cases) else ""

    records = [(rank, record) for rank, found in enumerate(run.records) for record in found]
    lines, failed = text.splitlines(), list[tuple[int, int, Any]]()
    for rank, record in records:
        if "check" in record:
            raise CheckFailed(f"{record['check']['type']}: {record['check']['text']}")
        if "error" in record:
            failed.append((record.get("case", -1), rank, record["error"]))
    if failed:
        number, rank, error = min(failed, key=lambda each: each[:2])
        return where(number, rank) + _error(error, lines)
    if run.excess:
        return f"it {run.excess}. Look for a loop that does not end"
    if run.is_complete:
        return None
    begun = max((record["begin"] for _, record in records if "begin" in record), default=-1)
    # A rank that MPI has ended for a broken rule could not hand in its faults at the end of the case.
    noted = [[Fault(*each["fault"]) for each in found if "fault" in each] for found in run.records]
    noted = noted[: cases[begun].ranks if where(begun) else None]
    if run.status is not None and any(noted):
        return f"{where(begun).rstrip(': ')}, {broken_rule(noted)}"
    was_late = any(run.stacks) and run.status is None  # then ranks were ended one after the other
    if run.report is not None and not was_late:
        return where(begun) + _hang(run.report, cases[begun].ranks if where(begun) else len(run.records))
    if any(run.stacks):
        return where(begun) + _endless(run.stacks, lines, exercise)
    if run.status is not None and any("cell" in record for _, record in records):
        how = f" with signal {run.status - 128}" if run.status > 128 else f" with exit code {run.status}"
        if exercise.on_ranks:  # mpiexec's code may be that of a rank that it has ended
            how = ""
        return f"{where(begun)}it ends its process{how}. A function returns: it does not exit"
    printed = [line.strip() for line in run.output.splitlines() if line.strip()]
    how = "the job was too slow" if run.status is None else f"the job ended with exit code {run.status}"
    raise CheckFailed(f"{how}{': ' * bool(printed)}{' / '.join(printed[-3:])[:400]}")


# What follows from an error of strict mode: words of its text, and the advice; the first that fits.
CONSEQUENCES = (
    (
        ("send", "never waited for"),
        "The array may still be sent when the caller changes it: wait for the request",
    ),
    (("recv", "never waited for"), "The array may be filled later, or never: wait for the request"),
    (
        ("never waited for",),
        "Its arrays may still be read or written when the function has returned: wait for it",
    ),
    (
        ("changed the buffer",),
        "MPI may read the array until the request is complete: wait first, or send a copy",
    ),
    (("uses memory that",), "Until that call is complete, use another array, or wait for it first"),
)


def broken_rule(by_rank: Sequence[Sequence[Fault]]) -> str:
    """Return the first fault that strict mode has found, with ranks, line and what follows; or nothing."""
    found = next((fault for faults in by_rank for fault in faults), None)
    if found is None:
        return ""
    if not found.place:
        return found.text
    ranks = [rank for rank, faults in enumerate(by_rank) if found in faults]
    place = found.place.replace("cell line", "line").replace(" from the cell", "")
    said = found.text.lower()
    follows = next((advice for words, advice in CONSEQUENCES if all(map(said.count, words))), "")
    return f"on {ranks_phrase(ranks)}: {found.text} ({place}). {follows}".rstrip(". ")


def below(run: Run, text: str) -> str:
    """Return the error that a line of the cell below the function has raised; empty if there is none."""
    found = [record["below"] for records in run.records for record in records if "below" in record]
    if not found:
        return ""
    at = _line(found[0]["line"], text.splitlines())
    return f"below the function, your cell raises {found[0]['type']}: {found[0]['text']}{at}"


def _error(error: dict[str, Any], lines: list[str]) -> str:
    text = f"{error['type']}{': ' * bool(error['text'])}{error['text']}"
    at = _line(error["line"], lines)
    if error["type"] == "StrictError":  # it names the rank and its own line
        return re.sub(r"^rank \d+: ", "", error["text"]).replace("cell line", "line")
    if error["what"]:
        return f"its result is of type {error['what']} and cannot be used ({text})"
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


def _hang(found: dict[str, Any], size: int) -> str:
    try:
        report = Report.from_json(json.dumps(found).encode())
        states = tuple(rank for rank in report.ranks if rank.rank < size)
        report = replace(report, ranks=states, world_size=size)
        if report.reason is Reason.RANK_DIED:
            dead = next(rank for rank in report.ranks if rank.rank == report.reporter)
            at = f" at {dead.place}" if dead.place else ""
            how = (dead.error or "died").partition(" in the middle")[0]
            if how.startswith("ended "):
                how = how.replace("ended", "ended its process", 1)
                at += ". A function returns: it does not exit"
            return f"rank {dead.rank} {how}{at}".replace("cell line", "line")
        groups = [line.strip() for line in rank_lines(report)[:SHOWN_GROUPS]]
        waits = any(rank.activity is not Activity.RUNNING for rank in report.ranks)
        text = f"the ranks hang. {_sentence(title(report))} {_sentence('; '.join(groups)) if waits else ''}"
    except (KeyError, TypeError, ValueError, StopIteration, IndexError, AssertionError):
        return f"the ranks hang: they wait for each other for more than {HANG_S:g} s"
    return text.replace(" from the cell", "").replace("cell line", "line").rstrip(" .")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def _endless(stacks: list[str], lines: list[str], exercise: Exercise) -> str:
    places = []
    for rank, stack in enumerate(stacks):
        if found := re.search(rf'File "{re.escape(CELL)}", line (\d+)', stack):
            places.append((f"rank {rank} is" if exercise.on_ranks else "it is") + _line(int(found[1]), lines))
    at = ": " * bool(places) + "; ".join(places[:2])
    advice = "Look for a loop that does not end"
    if re.search(r"\.[Tt]est\w*\(", at):
        advice = "A loop of `Test()` waits as `Wait()` does: test once, go on, and test again later"
    return f"it does not end within {exercise.deadline_s:g} s{at}. {advice}"
