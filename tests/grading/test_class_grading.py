"""`labkit course grade`: the marks of `nbgrader autograde`, several submissions at once, and after a stop."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import nbformat
import psutil
import pytest

from labkit.cli.course import copies
from tests.grading.class_of_notebook_01 import ASSIGNMENT, NAMES, CopiedCourse, different, grade, hand_in
from tests.grading.course import ENVIRONMENT, LIMIT_S, Course

pytestmark = [pytest.mark.grading, pytest.mark.timeout(LIMIT_S)]
STUDENTS, DEADLOCKS = 3, 1
GONE_S = 60.0  # for processes to be gone on a busy machine


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Return a course in which three students have handed in, and nobody is graded."""
    course = Course(tmp_path_factory.mktemp("class") / "course")
    hand_in(course, STUDENTS, DEADLOCKS)
    return course


@pytest.fixture
def course(handed_in: Course, tmp_path: Path) -> Course:
    """Return a copy of that course."""
    return CopiedCourse(handed_in, tmp_path / "course")


def students_of(course: Course) -> list[str]:
    return sorted(path.name for path in (course.folder / "submitted").iterdir())


def test_the_marks_are_those_of_nbgrader_and_the_same_command_grades_nobody_twice(
    course: Course, tmp_path: Path
) -> None:
    other = CopiedCourse(course, tmp_path / "other")
    printed = grade(course)
    assert f"Grading {STUDENTS} submissions" in printed
    assert f"({STUDENTS} of {STUDENTS})" in printed and f"of {len(NAMES)} exercises correct" in printed
    other.grade(ASSIGNMENT)
    assert different(course, other, students_of(course)) == []
    # The last student's ranks wait for one that has returned.
    assert "the ranks hang" in course.marks(students_of(course)[-1], ASSIGNMENT)["average_gradients"].finding
    assert "3 submissions: graded before and unchanged" in grade(course)
    # Who hands in again is graded again, and nobody else.
    first = students_of(course)[0]
    course.hand_in(first, ASSIGNMENT, course.released(ASSIGNMENT))
    printed = grade(course)
    assert (
        "2 submissions: graded before" in printed
        and f"{first}: 0 of {len(NAMES)} exercises correct" in printed
    )
    assert sum(mark.points for mark in course.marks(first, ASSIGNMENT).values()) == 0
    # What nbgrader itself has graded is left out, too.
    assert "3 submissions: graded before and unchanged" in grade(other)


def test_a_submission_that_cannot_be_graded_is_named_and_the_others_are_graded(course: Course) -> None:
    first, second, *_ = students_of(course)
    course.submission(first, ASSIGNMENT).write_text("no notebook")
    printed = grade(course, "--student", first, "--student", second, code=1)
    assert f"{first}: NOT GRADED: " in printed and f"Not graded: {first}." in printed
    assert f"{second}: " in printed and f"of {len(NAMES)} exercises correct" in printed
    assert not (course.folder / "autograded" / first / ASSIGNMENT).exists()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_command_leaves_nothing_half_done_and_the_next_one_goes_on(
    course: Course, stop: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "labkit", "course", "grade", ASSIGNMENT],
        cwd=course.folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        wait_for_line(process.stdout, f"(1 of {STUDENTS}")
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(stop)
        process.wait(GONE_S)
    _, left = psutil.wait_procs(started, GONE_S)
    assert left == []
    graded = [student for student in students_of(course) if is_complete(course, student)]
    assert graded and len(graded) < STUDENTS
    if stop != signal.SIGKILL:  # after which the next command removes what is half done
        assert len([*(course.folder / "autograded").glob(f"*/{ASSIGNMENT}")]) == len(graded)
    printed = grade(course)
    assert f"{len(graded)} submission" in printed and "graded before and unchanged" in printed
    assert all(is_complete(course, student) for student in students_of(course))


def wait_for_line(pipe: IO[str] | None, words: str) -> None:
    """Read lines until one holds these words."""
    assert pipe is not None
    printed = []
    for line in pipe:
        printed.append(line)
        if words in line:
            return
    raise AssertionError("".join(printed))


def is_complete(course: Course, student: str) -> bool:
    """Return whether a student's graded notebook is there, with an output below each check."""
    path = course.folder / "autograded" / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    if not path.exists():
        return False
    cells: list[Any] = nbformat.read(path, as_version=4).cells
    ids = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell for cell in cells}
    return all(ids[f"{copies.CHECK_ID}{name}"].outputs for name in NAMES)
