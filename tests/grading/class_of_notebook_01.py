"""A class that hands in notebook 01: some answers right, some wrong, some students with a deadlock.

`python -m tests.grading.class_of_notebook_01 30 --deadlocks 3` lets `labkit course grade` grade it, and
prints the seconds; with `--compare`, `nbgrader autograde` grades a copy, and marks that differ are printed.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from labkit.exercises import catalogue
from tests.exercises import outside
from tests.exercises.outside import Answer
from tests.grading import answering
from tests.grading.course import Course, Mark, run_module

ASSIGNMENT = "01_backprop_by_hand"
NAMES = [exercise.name for exercise in catalogue.exercises().values() if exercise.notebook == "01"]
DEADLOCK = "average_gradients", 4  # a wrong answer: a rank without samples returns before the collectives
ENDLESS = re.compile("forever|deadlock|never ends|endless|hang|wait", re.IGNORECASE)


def answers_of(chance: random.Random, *, deadlocks: bool) -> dict[str, str]:
    """Return a student's answers by the names of the exercises: two of three are right."""
    answers = {}
    for name in NAMES:
        known = outside.answers(name)
        right = [answer for answer in known if str(answer).startswith("right")]
        wrong = [answer for answer in known if answer not in right and not ENDLESS.search(answer.about)]
        answers[name] = chance.choice(right if chance.random() < 2 / 3 else wrong).text
    if deadlocks:
        answers[DEADLOCK[0]] = numbered(*DEADLOCK).text
    return answers


def numbered(name: str, number: int) -> Answer:
    """Return a wrong answer by its number."""
    return next(answer for answer in outside.answers(name) if str(answer) == f"wrong {number}")


def hand_in(course: Course, students: int, deadlocks: int) -> list[str]:
    """Let a class hand in; return the students' names. The last ones have a deadlock."""
    chance = random.Random(1)
    names = [f"student-{number:02}" for number in range(students)]
    for place, student in enumerate(names):
        notebook = course.released(ASSIGNMENT)
        for name, text in answers_of(chance, deadlocks=place >= students - deadlocks).items():
            answering.put(notebook, name, text)
        course.hand_in(student, ASSIGNMENT, notebook)
    return names


def grade(course: Course, *words: str, code: int | None = 0) -> str:
    """Grade the class with `labkit course grade`; return what it prints."""
    return run_module("labkit", "course", "grade", ASSIGNMENT, *words, cwd=course.folder, code=code)


class CopiedCourse(Course):
    """A copy of a course as it is now."""

    def __init__(self, course: Course, folder: Path) -> None:
        shutil.copytree(course.folder, folder)
        self.folder = folder


def different(one: Course, other: Course, students: list[str]) -> list[tuple[str, str, Mark, Mark]]:
    """Return each exercise of a student that has other points in the two courses."""
    rows = []
    for student in students:
        marks, others = one.marks(student, ASSIGNMENT), other.marks(student, ASSIGNMENT)
        rows += [
            (student, name, marks[name], others[name])
            for name in marks
            if marks[name].points != others[name].points
        ]
    return rows


def computed_s() -> float:
    """Return the computing time of all that this process has started and that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cost_of(command: str, took_s: float, used_s: float, students: int) -> str:
    """Return what a command has taken, as a line."""
    each_s = took_s / students
    return f"{command}: {took_s:.1f} s, {each_s:.2f} s for each student; computed for {used_s:.1f} s"


def main(words: list[str]) -> int:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("students", type=int)
    parser.add_argument("--deadlocks", type=int, default=0)
    parser.add_argument("--jobs", default="")
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        course = Course(Path(folder, "course"))
        students = hand_in(course, options.students, options.deadlocks)
        copy = CopiedCourse(course, Path(folder, "copy"))
        began, before_s = time.monotonic(), computed_s()
        print(grade(course, *(["--jobs", options.jobs] if options.jobs else [])))
        took, used = time.monotonic() - began, computed_s() - before_s
        print(cost_of("labkit course grade", took, used, len(students)))
        if not options.compare:
            return 0
        began, before_s = time.monotonic(), computed_s()
        copy.grade(ASSIGNMENT)
        took, used = time.monotonic() - began, computed_s() - before_s
        print(cost_of("nbgrader autograde", took, used, len(students)))
        rows = different(course, copy, students)
        for row in rows:
            print(*row, sep="\n    ")
        print(f"{len(rows)} marks differ")
        return int(bool(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
