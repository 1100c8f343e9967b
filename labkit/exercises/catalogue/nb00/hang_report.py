"""An exercise of notebook 00 about hang reports."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from labkit.exercises.exercise import Case, Exercise
from mpiwatch.report import Activity, CallRecord, MessageRecord, RankState, Reason, Report


def missing_ranks(report):
    """Return (missing, operation): the ranks that never joined a collective, and the collective's name.

    `report` is a hang report as a dictionary. A rank has joined if it waits in a collective of the report's
    communicator and has made as many calls there as any rank that waits. `missing` is a list, in order.
    """
    waiting = {
        state["rank"]: state["calls"][-1]
        for state in report["ranks"]
        if state["activity"] == "WAITING_IN_COLLECTIVE"
        and state["calls"][-1]["communicator"] == report["communicator"]
    }
    number = max(call["number"] for call in waiting.values())
    joined = {rank: call for rank, call in waiting.items() if call["number"] == number}
    missing = [state["rank"] for state in report["ranks"] if state["rank"] not in joined]
    return missing, next(iter(joined.values()))["operation"]


def _calls(*operations: str, communicator: int = 0) -> tuple[CallRecord, ...]:
    return tuple(
        CallRecord(communicator, number, name, None, 10, "float32", None, "cell", number + 3)
        for number, name in enumerate(operations, 1)
    )


def _report_cases() -> Sequence[Case]:
    def waits(rank: int, *operations: str, communicator: int = 0) -> RankState:
        calls = _calls(*operations, communicator=communicator)
        return RankState(rank, Activity.WAITING_IN_COLLECTIVE, calls=calls)

    def does(rank: int, activity: Activity, *operations: str, **fields: Any) -> RankState:
        return RankState(rank, activity, calls=_calls(*operations), **fields)

    message = MessageRecord("Recv", 0, 7)
    long, short = ("Bcast", "Barrier", "Allreduce"), ("Bcast", "Barrier")
    reports = {
        "4 ranks, one has returned from the cell": [
            *(waits(rank, "Barrier", "Allreduce") for rank in range(3)),
            does(3, Activity.RETURNED, "Barrier"),
        ],
        "4 ranks, two are missing": [
            does(0, Activity.RAISED, *short, error="ZeroDivisionError: division by zero"),
            waits(1, *long),
            does(2, Activity.WAITING_FOR_MESSAGE, *short, message=message),
            waits(3, *long),
        ],
        "3 ranks, one waits in an earlier collective": [waits(0, *long), waits(1, *short), waits(2, *long)],
        "4 ranks, one waits on another communicator": [
            does(0, Activity.RETURNED, *short),
            waits(1, *long),
            waits(2, *long, "Gather", communicator=1),
            waits(3, *long),
        ],
    }
    cases = []
    for label, states in reports.items():
        report = Report(Reason.TIMED_OUT, 5.0, tuple(states), communicator=0, reporter=1)
        cases.append(Case(label, ((json.loads(report.to_json()),),)))
    return cases


def _missing(case: Case) -> Sequence[Any]:
    report = Report.from_json(json.dumps(case.arguments[0][0]).encode())
    return [(report.missing(), report.joined()[0].calls[-1].operation)]


def _mistaken(wrong: Callable[[dict[str, Any], list[int], str], Any]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect that gets the report and the right result."""

    def results(case: Case) -> Sequence[Any]:
        ((missing, operation),) = _missing(case)
        return [wrong(case.arguments[0][0], missing, operation)]

    return results


def _not_waiting(report: dict[str, Any], missing: list[int], operation: str) -> Any:
    waits = "WAITING_IN_COLLECTIVE"
    return [state["rank"] for state in report["ranks"] if state["activity"] != waits], operation


def _any_communicator(report: dict[str, Any], missing: list[int], operation: str) -> Any:
    waiting = [state for state in report["ranks"] if state["activity"] == "WAITING_IN_COLLECTIVE"]
    number = max(state["calls"][-1]["number"] for state in waiting)
    joined = [state for state in waiting if state["calls"][-1]["number"] == number]
    absent = [state["rank"] for state in report["ranks"] if state not in joined]
    return absent, joined[0]["calls"][-1]["operation"]


EXERCISES = [
    Exercise(
        reference=missing_ranks,
        title="Read a hang report",
        difficulty=3,
        minutes=10,
        cases=_report_cases,
        expected=_missing,
        suspects={
            "these are the ranks that wait; return those that never joined": _mistaken(
                lambda report, missing, operation: (
                    [state["rank"] for state in report["ranks"] if state["rank"] not in missing],
                    operation,
                )
            ),
            "the missing ranks are right, but the operation is the last one that a missing rank called; "
            "return the one that the others wait in": _mistaken(
                lambda report, missing, operation: (
                    missing,
                    report["ranks"][missing[0]]["calls"][-1]["operation"],
                )
            ),
            "the reporter is the rank that wrote the report, not the rank that is missing": _mistaken(
                lambda report, missing, operation: ([report["reporter"]], operation)
            ),
            "a rank that waits in an earlier collective, or on another communicator, is missing too: compare "
            "the number and the communicator of its last call": _mistaken(_not_waiting),
            "each communicator counts its own calls; look only at ranks that wait on "
            "report['communicator']": _mistaken(_any_communicator),
            "only one missing rank is returned; return all of them": _mistaken(
                lambda report, missing, operation: (missing[:1], operation)
            ),
        },
        hints=(
            "A rank that waits on another communicator, or in an earlier collective, has not joined.",
            "`state['calls'][-1]` is a rank's last call. Its `number` counts the collectives on its "
            "`communicator`. The number of the ranks that have joined is the largest.",
            "Collect the ranks that have joined; all the others in report['ranks'] are missing. "
            "The operation is that of the last call of any rank that has joined.",
        ),
    ),
]
