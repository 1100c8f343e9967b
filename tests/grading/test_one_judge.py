"""nbgrader and the check in a notebook are one judge: what students hand in gets the same from both."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.checks.exercise import Exercise
from labkit.checks.launching import EXTRA_S, START_S
from labkit.exercises import catalogue
from tests.conftest import thorough
from tests.grading import answering, faults, same
from tests.grading.course import ASSIGNMENTS, LIMIT_S, Course
from tests.grading.notebook import Kernel, kernel

pytestmark = [pytest.mark.grading, pytest.mark.timeout(4 * LIMIT_S)]

# Seconds for one exercise on a machine that does little else.
MOST_S = {faults.DEADLOCK: 10.0, faults.LOOP: 20.0, faults.DEATH: 10.0}
SAMPLE = "03_sharding", "04_averaging_gradients"
TYPED, HELPED, FAULTY = "typed", "helped", "faulty"  # students


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return Course(tmp_path_factory.mktemp("judge") / "course")


@pytest.fixture(scope="module")
def python() -> Iterator[Kernel]:
    with kernel() as started:
        yield started


def exercises_of(assignment: str) -> list[Exercise]:
    number = assignment.partition("_")[0]
    return [exercise for exercise in catalogue.exercises().values() if exercise.notebook == number]


def with_sample(assignments: list[str]) -> list[object]:
    """Return a test's parameters: those of the sample always run, and the others are thorough."""
    return [name if name in SAMPLE else thorough(name) for name in assignments]


@pytest.mark.parametrize("assignment", with_sample(ASSIGNMENTS))
def test_a_reference_that_is_typed_into_its_stub_gets_full_points(course: Course, assignment: str) -> None:
    exercises = exercises_of(assignment)
    for student, write in (
        (TYPED, answering.type_in),
        (HELPED, answering.type_in_with_helper),
    ):
        notebook = course.released(assignment)
        for exercise in exercises:
            write(notebook, exercise)
        course.hand_in(student, assignment, notebook)
    course.grade(assignment)
    for student in (TYPED, HELPED):
        marks = course.marks(student, assignment)
        assert marks.keys() == {exercise.name for exercise in exercises}
        for exercise in exercises:
            mark = marks[exercise.name]
            assert mark.finding == "", (student, exercise.name)
            assert mark.points == mark.full_points == exercise.points


def is_quiet() -> bool:
    """Tell whether other work leaves the machine's cores to the test."""
    return os.getloadavg()[0] < 2 * (os.cpu_count() or 1)


@pytest.mark.parametrize(
    "assignment", with_sample([name for name in ASSIGNMENTS if faults.faulty_in(name.partition("_")[0])])
)
def test_a_fault_gets_no_points_and_the_finding_of_the_notebook(
    course: Course, python: Kernel, assignment: str
) -> None:
    faulty = {answer.name: answer for answer in faults.faulty_in(assignment.partition("_")[0])}
    notebook = course.released(assignment)
    for exercise in exercises_of(assignment):
        if exercise.name in faulty:
            answering.put(notebook, exercise.name, faulty[exercise.name].text)
        else:
            answering.type_in(notebook, exercise)
    course.hand_in(FAULTY, assignment, notebook)
    was_quiet = is_quiet()
    log = course.grade(assignment)
    was_quiet = was_quiet and is_quiet()
    timed = re.findall(r"(\w+): (?:not )?correct, after ([\d.]+) s", log)
    seconds = {name: float(text) for name, text in timed}
    marks, said = course.marks(FAULTY, assignment), python.checks(notebook)
    for exercise in exercises_of(assignment):
        mark = marks[exercise.name]
        if exercise.name not in faulty:
            assert (mark.finding, mark.points) == ("", exercise.points), exercise.name
            continue
        answer = faulty[exercise.name]
        assert mark.points == 0
        assert same.fault(mark.finding) == same.fault(said[exercise.name].finding)
        for words in answer.words:
            assert words in mark.finding
        most_s = START_S + exercise.deadline_s + EXTRA_S
        assert seconds[exercise.name] < (MOST_S[answer.kind] if was_quiet else most_s), exercise.name


@pytest.mark.parametrize("count", [7, thorough(same.COUNT)])
def test_answers_get_the_same_verdict_from_both(tmp_path: Path, python: Kernel, count: int) -> None:
    pairs = same.compare(Course(tmp_path / "course"), python, same.drawn(same.SEED, count))
    print(same.summary(pairs))
    assert len(pairs) >= count
    assert [str(pair) for pair in pairs if not pair.is_same] == []
