"""The judge names the mistake, the smallest failing case and the rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from labkit.exercises import judge
from labkit.exercises.ends import CheckFailed
from labkit.exercises.exercise import Case, Exercise, Outcome
from labkit.exercises.launching import Trial
from labkit.exercises.transport import pack

CASES = [
    Case(f"{n} values, p = {p}", tuple((np.arange(n) + float(rank),) for rank in range(p)))
    for p in (1, 2, 3)
    for n in (1, 4)
]


def mean(comm: Any, x: np.ndarray) -> np.ndarray:
    """Return the mean of all ranks' x."""
    return x


def right(case: Case) -> list[Any]:
    return [np.mean([x for (x,) in case.arguments], axis=0)] * case.ranks


def summed(case: Case) -> list[Any]:
    return [np.sum([x for (x,) in case.arguments], axis=0)] * case.ranks


def exercise(**changes: Any) -> Exercise:
    fields: dict[str, Any] = {
        "reference": mean,
        "title": "A mean",
        "difficulty": 1,
        "minutes": 5,
        "cases": lambda: CASES,
        "expected": right,
        "hints": ("one", "two"),
        "on_ranks": True,
    }
    return Exercise(**{**fields, **changes})


Produce = Callable[[Case], Sequence[Any]]


class Made:
    """What mistakes return in all cases, without a job that runs them."""

    def __init__(self, mistakes: Mapping[str, Produce]) -> None:
        self.mistakes = mistakes

    def on(self, number: int, sentences: Sequence[str], limit_s: float) -> list[list[Outcome]]:
        case = CASES[number]
        return [[Outcome(result, (result,)) for result in self.mistakes[each](case)] for each in sentences]


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
            outcomes.append(Outcome(result, (after,), (8,) * case.ranks, (1,) * case.ranks, calls))
        by_case.append(outcomes)
    each = exercise(mistakes=dict.fromkeys(mistakes, ""), **changes)
    return judge.judge(each, CASES, by_case, Made(mistakes)) or ""


def test_right_results_have_no_finding() -> None:
    assert finding(right) == ""


def test_the_mistake_that_returns_the_same_is_the_finding() -> None:
    assert finding(summed) == "with 1 values, p = 2: the sum is not divided by p"


def test_a_mistake_that_explains_more_cases_comes_first() -> None:
    first_only = lambda case: summed(case) if case.ranks == 2 else right(case)  # noqa: E731
    text = finding(summed, mistakes={"only p = 2": first_only, "every p": summed})
    assert text.endswith("every p")


def test_a_mistake_that_returns_something_else_is_not_named() -> None:
    text = finding(lambda case: [x * 3 + 1 for x in right(case)])
    assert text == "with 1 values, p = 1, on rank 0: result[0] is 1, expected 0"


def test_a_mistake_without_a_result_is_not_named() -> None:
    text = finding(summed, mistakes={"never": lambda case: []})
    assert "never" not in text
    assert "expected" in text


def test_the_smallest_failing_case_and_the_ranks_that_are_right_are_named() -> None:
    wrong_on_2 = lambda case: [x + (rank == 2) for rank, x in enumerate(right(case))]  # noqa: E731
    text = finding(wrong_on_2)
    assert text.startswith(
        "with 1 values, p = 3, on rank 2 (ranks 0, 1 are right): result[0] is 2, expected 1"
    )


def test_the_first_rank_that_is_wrong_is_named() -> None:
    text = finding(lambda case: [x + (rank > 0) for rank, x in enumerate(right(case))])
    assert text == "with 1 values, p = 2, on rank 1 (rank 0 is right): result[0] is 1.5, expected 0.5"
    text = finding(lambda case: [x + (rank > 0) * (case.ranks > 2) for rank, x in enumerate(right(case))])
    assert text == "with 1 values, p = 3, on rank 1 (rank 0 is right): result[0] is 2, expected 1"


def test_one_part_of_a_tuple_is_enough_to_recognise_a_mistake() -> None:
    text = finding(
        lambda case: [(x, x * 9 + 4) for x in summed(case)],
        expected=lambda case: [(x, x) for x in right(case)],
        mistakes={
            "first part": lambda case: [(x, y) for x, y in zip(summed(case), right(case), strict=True)]
        },
    )
    assert text.endswith("first part")


def test_a_changed_argument_is_named_with_its_rank() -> None:
    text = finding(right, doubled=1)
    assert text == ("with 1 values, p = 2: on rank 1 the function changes its argument `x`. Work on a copy")
    assert finding(right, doubled=1, may_change=(0,)) == ""


def test_a_changed_argument_is_added_to_a_wrong_result() -> None:
    text = finding(lambda case: [x * 3 + 1 for x in right(case)], doubled=0)
    assert "expected 0" in text
    assert "changes its argument `x`" in text


def test_the_result_can_be_an_argument() -> None:
    text = finding(right, result_in=0, mistakes={})
    assert text == "with 1 values, p = 2, on rank 0: x[0] is 0, expected 0.5"


def test_a_forbidden_call_is_found_even_if_the_result_is_right() -> None:
    text = finding(right, calls=("Send", "Allreduce"), forbidden=("Allreduce", "allreduce"))
    assert text.startswith("on rank 0, it calls `comm.Allreduce`")
    assert finding(right, calls=("Send",), forbidden=("Allreduce",)) == ""


def test_look_sees_the_traffic_of_right_results_only() -> None:
    look = lambda case, outcomes: f"sends {outcomes[0].sent}" if case.ranks == 3 else None  # noqa: E731
    assert finding(right, look=look) == "with 1 values, p = 3: sends (8, 8, 8)"
    assert "sends" not in finding(summed, look=look)


def test_without_expected_results_look_alone_judges() -> None:
    assert finding(summed, expected=None) == ""


def test_a_number_computed_from_float32_is_compared_to_rounding_of_float32() -> None:
    case = Case("float32", ((np.ones(3, np.float32),),))
    outcomes = [[Outcome(1.0 + 1e-6, case.arguments[0])]]
    each = exercise(expected=lambda case: [1.0], on_ranks=False)
    assert judge.judge(each, [case], outcomes, Made({})) is None
    double = Case("float64", ((np.ones(3),),))
    assert judge.judge(each, [double], outcomes, Made({}))


def test_an_error_of_the_check_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        finding(right, look=lambda case, outcomes: str(1 / 0))
    with pytest.raises(ValueError, match="has 0 results"):
        finding(right, expected=lambda case: [])


def test_a_missing_record_is_never_correct() -> None:
    record = {"case": 0, "result": pack(1), "arguments": [], "sent": [], "messages": [], "calls": []}
    trial = Trial([[record]], [""], None, 0, "", "", "")
    assert judge.outcomes(trial, CASES[:1])[0][0].result == 1
    with pytest.raises(CheckFailed, match="no result"):
        judge.outcomes(trial, CASES[:2])
