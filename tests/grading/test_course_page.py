"""docs/course.md with a made-up class: every command of its table runs, and grades reach the platforms."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from labkit.cli.course import copies, questions
from labkit.exercises import catalogue
from tests.cli.test_platform_tables import canvas_imports, moodle_imports
from tests.grading.course import run_module
from tests.grading.made_class import ASSIGNMENT, EXERCISE, Student, made_class, run_course

pytestmark = pytest.mark.grading

CLASS = made_class(7)
ADA, ALAN, EMMY, GRACE, *_, LAST = CLASS
FULL = sum(
    each.points for each in catalogue.exercises().values() if each.notebook == "03" and not each.on_ranks
)
LOST = catalogue.find(EXERCISE).points


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each command of the page has printed, by its words, and the course's folder as "folder"."""
    folder = tmp_path_factory.mktemp("class")
    lines = {command: text for command, text, _ in run_course(folder, CLASS)}
    return {**lines, "folder": str(folder / "course")}


def said(printed: dict[str, str], *words: str) -> str:
    """Return what the command with these words has printed."""
    (text,) = [text for command, text in printed.items() if all(word in command for word in words)]
    return text


def points(student: Student) -> int:
    return FULL if student.number % 3 else FULL - LOST


@pytest.mark.timeout(1200)
def test_all_are_assigned_or_named(printed: dict[str, str]) -> None:
    course = Path(printed["folder"])
    folders = {path.name for path in (course / "submitted").iterdir()}
    assert folders == {student.id for student in CLASS if student is not GRACE}
    assert f"a file of {GRACE.id}: its exercises are those of 00_meet_the_cluster" in said(
        printed, "canvas.zip"
    )


def test_lateness_counts_from_the_deadline_with_its_extension(printed: dict[str, str]) -> None:
    from nbgrader.api import Gradebook  # noqa: PLC0415  (the extra `grading`)

    assert "until 2026-11-10 22:59 UTC" in said(printed, "extend")
    with Gradebook(f"sqlite:///{printed['folder']}/gradebook.db") as gradebook:
        late_s = {
            submission.student.id: submission.total_seconds_late
            for submission in gradebook.assignment_submissions(ASSIGNMENT)
        }
    assert late_s[ALAN.id] == (10 * 60 + 1) * 60  # from Sunday, 23:59, to Monday, 10:00
    assert late_s[EMMY.id] == late_s[LAST.id] == 0


def test_the_grades_are_imported_by_each_platforms_rules(printed: dict[str, str]) -> None:
    course = Path(printed["folder"])
    of_canvas = canvas_imports((course / "for_canvas.csv").read_text(), {77})[77]
    assert of_canvas == {
        str(student.number): "" if student is GRACE else str(points(student))
        for student in CLASS
        if student.platform != "moodle"
    }
    of_moodle = moodle_imports((course / "for_moodle.csv").read_text())
    moodle = [student for student in CLASS if student.platform == "moodle"]
    assert of_moodle == {str(student.number): points(student) for student in moodle}
    assert "still wait for points in formgrader" in said(printed, "for_canvas.csv")


def test_equal_functions_are_listed_and_the_feedback_names_exercises(printed: dict[str, str]) -> None:
    alike = said(printed, "alike")
    assert f"{EXERCISE} (" in alike and "equal to the reference" in alike and ADA.id in alike
    page = Path(printed["folder"], "feedback", ADA.id, ASSIGNMENT, f"{ASSIGNMENT}.html").read_text()
    assert "Test cell" not in page and "Coding free-response" not in page
    title = catalogue.find(EXERCISE).heading.title
    assert f'<li><a href="#{copies.CHECK_ID}{EXERCISE}">{title} (<code>{EXERCISE}</code>)</a>' in page
    assert f'<a href="#{questions.QUESTION_ID}03-blocks">Question <code>03-blocks</code></a>' in page


def test_one_exercise_is_judged_again_and_the_changes_are_listed(printed: dict[str, str]) -> None:
    """As if a check that has refused right answers were mended: the gradebook has no points for it yet."""
    from nbgrader.api import Gradebook  # noqa: PLC0415  (the extra `grading`)

    assert f"{EXERCISE}: 6 students judged again, 0 students with other points." in said(printed, "regrade")
    course = Path(printed["folder"])
    grade_of = (f"{copies.CHECK_ID}{EXERCISE}", ASSIGNMENT, ASSIGNMENT)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        grade = gradebook.find_grade(*grade_of, ADA.id)
        grade.auto_score = 0
        by_hand = gradebook.find_grade(*grade_of, EMMY.id)
        by_hand.auto_score, by_hand.manual_score = 0, 1
        gradebook.db.commit()
    text = run_module("labkit", "course", "regrade", EXERCISE, cwd=course)
    assert f"{ADA.id}: 0 → {LOST} points" in text
    assert "2 students with other points" in text and f"look at {EMMY.id} in formgrader" in text
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        assert gradebook.find_grade(*grade_of, ADA.id).score == LOST
        assert gradebook.find_grade(*grade_of, EMMY.id).score == 1


def test_points_of_a_question_reach_the_grades(printed: dict[str, str]) -> None:
    from nbgrader.api import Gradebook  # noqa: PLC0415  (the extra `grading`)

    course = Path(printed["folder"])
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        grade = gradebook.find_grade(f"{questions.QUESTION_ID}03-blocks", ASSIGNMENT, ASSIGNMENT, LAST.id)
        assert grade.needs_manual_grade
        grade.manual_score, grade.needs_manual_grade = 0.5, False  # as formgrader does
        gradebook.db.commit()
    words = ("course", "grades", "canvas.csv", "again.csv", "--assignment", ASSIGNMENT)
    run_module("labkit", *words, cwd=course)
    _, *rows = csv.reader((course / "again.csv").read_text().splitlines())
    assert {row[1]: row[-1] for row in rows}[str(LAST.number)] == str(points(LAST) + 0.5)


def test_what_a_student_shares_is_in_the_table(printed: dict[str, str]) -> None:
    assert said(printed, "course progress shared").startswith("ada: ")
    shared = json.loads(Path(printed["folder"], "shared/ada.json").read_text())
    assert set(shared) == {"shared"}


def test_mistyped_names_are_one_line(printed: dict[str, str]) -> None:
    course = Path(printed["folder"])
    for words, text in {
        ("extend", "Emmy_Noether", ASSIGNMENT, "--days", "1"): f"did you mean {EMMY.id}?",
        ("extend", EMMY.id, "00_meet_the_cluster", "--days", "1"): "is not in the gradebook",
        ("extend", EMMY.id, "03", "--days", "1"): "is no assignment of this course",
        (
            "times",
            ASSIGNMENT,
            "worksheet.csv",
            "--zone",
            "Berlin",
        ): "expected a time zone such as Europe/Berlin",
        ("grades", "worksheet.csv", "x.csv"): "name it with --assignment",
        ("regrade", "shard_bound"): "did you mean shard_bounds?",
    }.items():
        assert text in run_module("labkit", "course", *words, cwd=course, code=2)
