"""The notebook's check and nbgrader are one judge: hand the same answers in to both, and compare.

    python -m tests.grading.same [--seed SEED] [--count COUNT]

draws answers of `tests/exercises/answers`: one to each exercise of a notebook, until there are COUNT. It
prints each answer that gets two verdicts, how many get one, and the seconds. It needs the extra `grading`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import mpi4py

from labkit.exercises import catalogue
from tests.exercises import outside
from tests.exercises.outside import Answer
from tests.grading import answering
from tests.grading.course import ASSIGNMENTS, Course, Mark
from tests.grading.notebook import Kernel, Said, kernel

SEED, COUNT = 1, 100
Answers = dict[str, Answer]  # by the exercise's name


class Pair(NamedTuple):
    """What both sides say of one answer."""

    student: str
    name: str
    answer: Answer
    in_notebook: Said
    by_nbgrader: Mark

    @property
    def is_same(self) -> bool:
        """Return whether both accept the answer, or both refuse it."""
        return self.in_notebook.passed == self.by_nbgrader.passed

    @property
    def has_same_finding(self) -> bool:
        """Return whether both name the same fault, too."""
        return fault(self.in_notebook.finding) == fault(self.by_nbgrader.finding)

    def __str__(self) -> str:
        """Return the answer, and both findings below it."""
        return (
            f"{self.student}, {self.name}, {self.answer}: {self.answer.about}\n"
            f"    notebook: {self.in_notebook.finding or 'correct'}\n"
            f"    nbgrader: {self.by_nbgrader.finding or 'correct'}"
        )


def fault(finding: str) -> str:
    """Return what both sides must say alike of a fault.

    That is the finding without blanks, and without the line of a loop at which time was up. Of a hang it is
    the case and the lines at which ranks wait: which of them notices first and begins the report is chance.
    """
    case, hang, report = finding.partition("the ranks hang")
    if hang:
        return f"{case}{hang} {sorted(set(re.findall(r'at (?:cell )?line [0-9]+: `.*?`', report)))}"
    return "".join(re.sub(r" is at line \d+: `.*?`", "", finding).split()).rstrip(".")


def drawn(seed: int, count: int) -> list[tuple[str, Answers]]:
    """Return notebooks with an answer to each exercise, `count` answers or a few more."""
    chance = random.Random(seed)
    numbers = {assignment: assignment.partition("_")[0] for assignment in ASSIGNMENTS}
    submissions: list[tuple[str, Answers]] = []
    left = count
    while left > 0:
        for assignment in chance.sample(ASSIGNMENTS, len(ASSIGNMENTS)):
            exercises = catalogue.exercises().values()
            names = [each.name for each in exercises if each.notebook == numbers[assignment]]
            if names and left > 0:
                submissions.append(
                    (assignment, {name: chance.choice(outside.answers(name)) for name in names})
                )
                left -= len(names)
    return submissions


def compare(course: Course, python: Kernel, submissions: list[tuple[str, Answers]]) -> list[Pair]:
    """Hand the submissions in, each as a student of its own, and return what both sides say."""
    notebooks: dict[str, Any] = {}
    for number, (assignment, answers) in enumerate(submissions):
        notebook = course.released(assignment)
        for name, answer in answers.items():
            answering.put(notebook, name, answer.text)
        student = f"student-{number}"
        course.hand_in(student, assignment, notebook)
        notebooks[student] = notebook
    for assignment in sorted({assignment for assignment, _ in submissions}):
        course.grade(assignment)
    pairs = []
    for (assignment, answers), (student, notebook) in zip(submissions, notebooks.items(), strict=True):
        said = python.checks(notebook)
        marks = course.marks(student, assignment)
        pairs += [Pair(student, name, answer, said[name], marks[name]) for name, answer in answers.items()]
    return pairs


def summary(pairs: list[Pair]) -> str:
    """Return how many answers get equal verdicts and findings."""
    verdicts = sum(pair.is_same for pair in pairs)
    findings = sum(pair.has_same_finding for pair in pairs)
    return f"{verdicts} of {len(pairs)} answers get the same verdict from both, {findings} the same finding"


def main(words: list[str]) -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    options = parser.parse_args(words)
    mpi4py.rc.initialize = False
    os.environ["IPP_NONINTERACTIVE"] = "1"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, kernel() as python:
        pairs = compare(Course(Path(folder, "course")), python, drawn(options.seed, options.count))
    for pair in pairs:
        if not (pair.is_same and pair.has_same_finding):
            print(pair)
    print(f"{summary(pairs)}, in {time.monotonic() - began:.0f} s")
    return int(not all(pair.is_same for pair in pairs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
