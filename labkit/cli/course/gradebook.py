"""nbgrader's gradebook of the course in the current folder: scores, extensions, times of handing in.

This module needs nbgrader, the extra `grading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config, PyFileConfigLoader

from labkit.cli.course.platforms import Assignment, Score, Table, times
from labkit.cli.course.submissions import SUBMITTED
from labkit.files import atomic_write

CONFIG = "nbgrader_config.py"


class GradebookError(Exception):
    """The gradebook lacks what a command needs."""


def configuration() -> Config:
    """Return the settings of the course in the current folder."""
    loader = PyFileConfigLoader(CONFIG, path=str(Path.cwd()))
    return loader.load_config()


@contextmanager
def opened() -> Iterator[Any]:
    """Open the gradebook of the course in the current folder."""
    with Gradebook(database()) as gradebook:
        yield gradebook


def database() -> str:
    """Return the address of the course's gradebook."""
    url: str = CourseDirectory(config=configuration()).db_url
    return url


def find(gradebook: Any, assignment: str) -> Any:
    """Return an assignment of the gradebook. Raise GradebookError if it was not generated."""
    try:
        return gradebook.find_assignment(assignment)
    except MissingEntry:
        raise GradebookError(
            f"{assignment} is not in the gradebook: `nbgrader generate_assignment {assignment}` records it"
        ) from None


def recorded() -> list[str]:
    """Return the names of all assignments in the gradebook."""
    with opened() as gradebook:
        return sorted(assignment.name for assignment in gradebook.assignments)


def has_notebook(assignment: str) -> bool:
    """Tell whether an assignment has a notebook that nbgrader grades; a contest has none."""
    return Path("source", assignment).is_dir()


def record(assignment: str, parts: Mapping[str, float], points: Mapping[str, Mapping[str, float]]) -> None:
    """Write points that come from no notebook into the gradebook, as an assignment of their own.

    `parts` maps what gets points to the most points that it gets; `points` has the points of each student.
    What was there before for these students is replaced.
    """
    with opened() as gradebook:
        gradebook.update_or_create_assignment(assignment)
        gradebook.update_or_create_notebook(assignment, assignment)
        for part, most in parts.items():
            gradebook.update_or_create_grade_cell(
                part, assignment, assignment, max_score=most, cell_type="code"
            )
        for student, points_of_parts in points.items():
            gradebook.update_or_create_student(student)
            gradebook.update_or_create_submission(assignment, student)
            for part, value in points_of_parts.items():
                grade = gradebook.find_grade(part, assignment, assignment, student)
                grade.auto_score, grade.needs_manual_grade = value, False
        gradebook.db.commit()


def assignment_scores(name: str) -> Assignment:
    """Return the points of all submissions of an assignment, after what lateness costs."""
    with opened() as gradebook:
        assignment = find(gradebook, name)
        scores = {
            submission.student.id: Score(
                max(0.0, submission.score - (submission.late_submission_penalty or 0.0)),
                bool(submission.needs_manual_grade),
            )
            for submission in assignment.submissions
            if graded(submission.student.id, name) or not has_notebook(name)
        }
        return Assignment(name, assignment.max_score, scores)


def graded(student: str, assignment: str) -> bool:
    """Tell whether nbgrader has graded what a student has handed in."""
    return Path("autograded", student, assignment).is_dir()


def extend(student: str, assignment: str, days: float) -> datetime:
    """Give a student more days, instead of any given before; return the new deadline in UTC.

    Raise GradebookError if the assignment has no deadline, or if nobody knows the student.
    """
    with opened() as gradebook:
        recorded = find(gradebook, assignment)
        if recorded.duedate is None:
            raise GradebookError(
                f"{assignment} has no deadline: "
                f"`nbgrader db assignment add {assignment} --duedate=TIME` sets it"
            )
        known = {registered.id for registered in gradebook.students}
        if student not in known:
            if not Path(SUBMITTED, student).is_dir():
                near = "".join(f"; did you mean {name}?" for name in get_close_matches(student, known, n=1))
                raise GradebookError(
                    f"{student} has handed in nothing, and the gradebook does not know the name{near} "
                    f"(`nbgrader db student add {student}` makes it known)"
                )
            gradebook.add_student(student)
        gradebook.update_or_create_submission(assignment, student)
        gradebook.grant_extension(assignment, student, days=days)
        deadline: datetime = gradebook.find_submission(assignment, student).duedate
        return deadline


def note_times(assignment: str, table: Table, zone: str) -> list[str]:
    """Write when students have handed in beside what they have, as nbgrader reads it; return lines to print.

    Raise TableError for a time that cannot be read, before anything is written.
    """
    lines, missing = [], []
    for names, time in times(table, ZoneInfo(zone)):
        folders = [Path(SUBMITTED, name, assignment) for name in names]
        folder = next((path for path in folders if path.is_dir()), None)
        if folder is None:
            missing.append(names[0])
            continue
        text = time.astimezone(ZoneInfo("UTC")).strftime("%Y-%m-%d %H:%M:%S UTC")
        with atomic_write(folder / "timestamp.txt") as file:
            file.write(text.encode())
        lines.append(f"{folder.parent.name}: {text}")
    if missing:
        lines.append(f"Not in {SUBMITTED}: {', '.join(missing)}.")
    return lines
