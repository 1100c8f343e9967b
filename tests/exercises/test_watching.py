"""Which case `run_case` runs, and that a failed check says how to watch it."""

from __future__ import annotations

import pytest

from labkit.checks.exercise import Case
from labkit.exercises import catalogue, watching


def test_the_case_is_the_one_that_the_finding_names() -> None:
    cases = [
        Case("2 ranks", ((1,), (2,))),
        Case("2 ranks, 5 values", ((1,), (2,))),
        Case("3 ranks", ((),) * 3),
    ]
    assert watching.number_of_case(cases, "with 2 ranks: nothing came") == 0
    assert watching.number_of_case(cases, "with 2 ranks, 5 values, on rank 1: nothing came") == 1
    assert watching.number_of_case(cases, "it calls np.dot") is None


@pytest.mark.parametrize("name", ["shift_right", "ring_reduce_scatter"])
def test_a_failed_check_says_how_to_watch_its_case(name: str) -> None:
    exercise = catalogue.find(name)
    second = list(exercise.cases())[1]
    said = watching.note_failure(exercise, f"with {second.label}: the result is wrong")
    assert f"run_case({name})" in said and watching.failed_cases[name] == 1
    assert watching.note_failure(exercise, "it calls Allreduce, which the task forbids") == ""
    assert name not in watching.failed_cases


def test_a_function_without_ranks_has_no_case_to_watch() -> None:
    names = catalogue.exercises()
    exercise = next(each for each in map(catalogue.find, names) if not each.on_ranks)
    assert watching.note_failure(exercise, f"with {next(iter(exercise.cases())).label}: wrong") == ""
