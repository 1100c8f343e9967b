"""The judge names the mistake, the smallest failing case and the rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from labkit.checks.exercise import Call, Case, Exercise, Fault, Outcome, Verdict
from labkit.checks.failures import ADVICE, CheckFailed, broken_rule
from labkit.checks.judge import Judge
from labkit.checks.launching import Run
from labkit.checks.transport import pack
from labkit.exercises import catalogue
from tests.exercises import corpus

CASES = [
    Case(f"{n} values, p = {p}", tuple((np.arange(n) + float(rank),) for rank in range(p)))
    for p in (1, 2, 3)
    for n in (1, 4)
]
Produce = Callable[[Case], Sequence[Any]]


def mean(comm: Any, x: np.ndarray) -> np.ndarray:
    """Return the mean of all ranks' x."""
    return x


def right(case: Case) -> list[Any]:
    return [np.mean([x for (x,) in case.arguments], axis=0)] * case.ranks


def summed(case: Case) -> list[Any]:
    return [np.sum([x for (x,) in case.arguments], axis=0)] * case.ranks


def summed_on_two(case: Case) -> list[Any]:
    return summed(case) if case.ranks == 2 else right(case)


def tripled(case: Case) -> list[Any]:
    return [x * 3 + 1 for x in right(case)]


def wrong_on_last(case: Case) -> list[Any]:
    return [x + (rank == 2) for rank, x in enumerate(right(case))]


def exercise(**changes: Any) -> Exercise:
    fields: dict[str, Any] = {"hints": ("one", "two")}
    fields |= {"reference": mean, "cases": lambda: CASES, "expected": right}
    return Exercise(**{**fields, **changes})


class JudgeWithoutJob(Judge):
    """A judge that is told what mistakes return."""

    def __init__(self, each: Exercise, cases: Sequence[Case], mistakes: Mapping[str, Produce]) -> None:
        super().__init__(None, each, cases)  # type: ignore[arg-type]
        self.produced = mistakes

    def mistaken(
        self, numbers: Sequence[int], sentences: Sequence[str], limit_s: float
    ) -> list[dict[int, list[Outcome]]]:
        cases = {number: self.cases[number] for number in numbers}
        return [
            {
                number: [Outcome(result, (result,)) for result in self.produced[each](case)]
                for number, case in cases.items()
            }
            for each in sentences
        ]


SUMMED = {"the sum is not divided by p": summed}


def finding(
    produce: Produce,
    calls: tuple[str, ...] = (),
    doubled: int | None = None,
    mistakes: Mapping[str, Produce] = SUMMED,
    **changes: Any,
) -> str:
    """Return the finding on a function that returns `produce(case)` and doubles the argument of one rank."""
    by_case = []
    for case in CASES:
        outcomes = []
        for rank, result in enumerate(produce(case)):
            (x,) = case.arguments[rank]
            after = 2 * x + 1 if rank == doubled else x
            outcomes.append(
                Outcome(result, (after,), (8,) * case.ranks, (1,) * case.ranks, tuple(map(Call, calls)))
            )
        by_case.append(outcomes)
    each = exercise(mistakes=dict.fromkeys(mistakes, ""), **changes)
    return JudgeWithoutJob(each, CASES, mistakes).finding(by_case) or ""


def sends(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    if case.ranks == 3:
        yield f"sends {outcomes[0].sent}"


def in_pairs(produce: Produce) -> Produce:
    return lambda case: [(x, y) for x, y in zip(produce(case), right(case), strict=True)]


@pytest.mark.parametrize(
    ("produce", "changes", "expected"),
    [
        (right, {}, ""),
        (summed, {}, "with 1 values, p = 2: the sum is not divided by p"),
        (
            summed,  # explained by both in the first wrong case, by one in the next
            {"mistakes": {"only p = 2": summed_on_two, "every p": summed}},
            "with 1 values, p = 2: every p",
        ),
        (
            lambda case: [x + 5 for x in right(case)] if case.ranks == 2 else summed(case),
            {},  # a mistake that explains only a later case is not the first case's
            "with 1 values, p = 2, on rank 0: result[0] is 5.5, expected 0.5",
        ),
        (tripled, {}, "with 1 values, p = 1, on rank 0: result[0] is 1, expected 0"),
        (
            wrong_on_last,
            {},
            "with 1 values, p = 3, on rank 2 (ranks 0, 1 are right): result[0] is 2, expected 1",
        ),
        (
            lambda case: [(x, x * 9 + 4) for x in summed(case)],
            {"expected": in_pairs(right), "mistakes": {"first part": in_pairs(summed)}},
            "with 1 values, p = 2: first part",
        ),
        (
            right,
            {"doubled": 1},
            "with 1 values, p = 2: on rank 1 the function changes its argument `x`. Work on a copy",
        ),
        (right, {"doubled": 1, "may_change": (0,)}, ""),
        (
            tripled,
            {"doubled": 0},
            "with 1 values, p = 1, on rank 0: result[0] is 1, expected 0. "
            "Also, on rank 0 the function changes its argument `x`. Work on a copy",
        ),
        (
            right,
            {"result_in": 0, "mistakes": {}},
            "with 4 values, p = 2, on rank 0, the result is a wrong sum: the array of rank 1 is missing from "
            "it; the array of rank 0 has the factor 1, expected 0.5",
        ),
        (
            right,
            {"calls": ("Send", "Allreduce"), "forbidden": ("Allreduce", "allreduce")},
            "on rank 0, it calls `comm.Allreduce`, which this exercise leaves out: "
            "write it without this call",
        ),
        (right, {"look": sends}, "with 1 values, p = 3: sends (8, 8, 8)"),
        (tripled, {"expected": None, "look": sends}, "with 1 values, p = 3: sends (8, 8, 8)"),
        (
            summed,  # what look finds is recognised where nothing is expected
            {"expected": None, "look": sends},
            "with 1 values, p = 3: the sum is not divided by p",
        ),
    ],
)
def test_the_finding(produce: Produce, changes: dict[str, Any], expected: str) -> None:
    assert finding(produce, **changes) == expected


def test_a_number_computed_from_float32_is_compared_to_rounding_of_float32() -> None:
    each = exercise(reference=lambda x: x, expected=lambda case: [1.0])
    for dtype, is_right in (np.float32, True), (np.float64, False):
        case = Case("ones", ((np.ones(3, dtype),),))
        found = JudgeWithoutJob(each, [case], {}).finding([[Outcome(1.0 + 1e-6, case.arguments[0])]])
        assert (found is None) == is_right


def test_an_error_of_the_check_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        finding(right, look=lambda case, outcomes: str(1 / 0))
    with pytest.raises(ValueError, match="has 0 results"):
        finding(right, expected=lambda case: [])


def test_a_missing_record_is_never_correct() -> None:
    record = {"case": 0, "result": pack(1), "arguments": [], "sent": [], "messages": [], "calls": []}
    record["faults"], record["shares_memory"] = [], False
    run = Run([[record]], [""], None, True, 0, "", "")
    assert JudgeWithoutJob(exercise(), CASES[:1], {}).outcomes(run)[0][0].result == 1
    with pytest.raises(CheckFailed, match="no result"):
        JudgeWithoutJob(exercise(), CASES[:2], {}).outcomes(run)


@pytest.mark.parametrize("kind", sorted(ADVICE))
def test_the_advice_on_a_broken_rule_follows_from_its_kind_and_not_from_its_words(kind: str) -> None:
    fault = Fault("request lifecycle", "words that nobody looks for", "line 3: `x`", kind)
    expected = f"on rank 1: words that nobody looks for (line 3: `x`). {ADVICE[kind]}"
    assert broken_rule([[], [fault]]) == expected


def test_a_broken_rule_without_advice_ends_with_its_line() -> None:
    fault = Fault("resource leak", "the request of Isend was never waited for", "line 3")
    assert broken_rule([[fault], [fault]]) == f"on ranks 0, 1: {fault.text} (line 3)"


LEAVES_REQUESTS = """
def shift_right(comm, x):
    received = np.empty_like(x)
    requests = [comm.Isend(x, dest=(comm.rank + 1) % comm.size)]
    requests.append(comm.Irecv(received, source=(comm.rank - 1) % comm.size))
    try:
        raise RuntimeError("between the start and the Wait")
    except RuntimeError as error:
        kept = error  # refers to this frame, which refers to it: only the collector frees them
        raise
"""


@pytest.mark.exercises
def test_requests_of_an_earlier_answer_in_the_same_job_are_not_this_ones() -> None:
    head, *lines = catalogue.find("shift_right").text.splitlines()
    right = "\n".join(["import gc", head, "    gc.collect()", *lines])
    first, other = corpus.submit("shift_right", LEAVES_REQUESTS, right)
    assert "RuntimeError: between the start and the Wait" in first.finding
    assert other.finding == ""


@pytest.mark.exercises
def test_a_collective_that_the_check_carries_out_has_the_name_that_the_student_wrote() -> None:
    wrong = catalogue.find("two_level_sum").text.replace(
        "comm.Split(inside.rank,", "comm.Split(comm.rank // 2,"
    )
    (verdict,) = corpus.submit("two_level_sum", wrong)
    assert "in Allreduce (#" in verdict.finding and "ring_allreduce" not in verdict.finding


def test_each_part_of_an_exercise_has_the_first_finding_on_it() -> None:
    """The points are those of the parts that are right, also if another case shows another fault."""

    def look(case: Case, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
        yield "ends", f"ends badly on {case.ranks}"
        if case is CASES[-1]:
            yield "begins", "begins late"

    parts = {"begins": 1, "goes on": 3, "ends": 2}
    several = exercise(mistakes={}, parts=parts, look_at_parts=look)
    judge = JudgeWithoutJob(several, CASES, {})
    outcomes = []
    for case in CASES:
        pairs = zip(right(case), case.arguments, strict=True)
        outcomes.append([Outcome(result, arguments) for result, arguments in pairs])
    first = f"ends badly on {CASES[0].ranks}"
    assert judge.finding(outcomes) == f"with {CASES[0].label}: {first}"
    assert judge.parts == {"begins": "begins late", "goes on": "", "ends": first}
    verdict = Verdict(False, first, parts=judge.parts)
    assert several.share_of_points(verdict) == 0.5
    assert several.right_parts(verdict) == "Right: goes on. Not yet: begins, ends."
    assert several.share_of_points(Verdict(False, "it raises an error")) == 0


def test_what_a_function_prints_in_a_case_is_shown_once() -> None:
    """Without ranks, the check calls it twice in each case."""
    prints = "def linear_backward(dy, x, w):\n    print('first')\n    print('second')\n    return dy"
    (found,) = corpus.submit("linear_backward", prints)
    assert found.printed == "first\nsecond\n"
