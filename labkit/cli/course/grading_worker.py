"""A process that grades submissions, one after the other, beside others that do the same.

    python -m labkit.cli.course.grading_worker ASSIGNMENT FOLDER

reads the name of a student from each line of its standard input, and answers with a line of JSON: a
`Graded`. `class_grading.py` starts these processes, in the folder of the course.

nbgrader's gradebook is a file that one process may write at a time, so the processes take turns by the lock
of a file in FOLDER: one of them does nbgrader's steps, while the others wait for their judges.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import signal
import sys
import time
import warnings as python_warnings
from typing import Any, NamedTuple

from filelock import FileLock
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory

from labkit.checks import judging
from labkit.cli.course import gradebook, grading

POLL_S = 0.02  # between looks at the lock
# Lines of nbgrader's log that say no more than the exception above them.
EMPTY_LINES = "There was an error processing", "Please see the", "Canceled"


class Graded(NamedTuple):
    """What became of a student's submission: how many of its exercises are correct, or why it has no grade.

    `warnings`: what nbgrader and the lab say of it.
    """

    student: str
    correct: int
    exercises: int
    seconds: float
    warnings: list[str]
    error: str = ""


class CheckInTurn(grading.CheckExercises):
    """Let other processes do nbgrader's steps while this one waits for its judge."""

    turn: FileLock
    verdicts: list[bool]  # of the exercises of the present submission

    def judge(self, name: str, text: str) -> Any:
        self.turn.release()
        try:
            output = super().judge(name, text)
        finally:
            self.turn.acquire()
        self.verdicts.append(grading.is_correct(output))
        return output


class Warnings(logging.Handler):
    """Keeps the warnings and errors of a submission, one line each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the last line: of a traceback, that is the exception."""
        line = record.getMessage().strip().splitlines()[-1:]
        if line and not line[0].startswith(EMPTY_LINES):
            self.lines += line


def main(assignment: str, folder: str) -> None:
    """Grade the submissions of the students whose names come in."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is no answer
    # The supervisor ends this process by SIGTERM; nbgrader removes what is half done if it is interrupted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    grading.has_sandbox()  # the process that has started this one says it if there is none
    log, warnings = logging.getLogger("traitlets"), Warnings()
    log.addHandler(warnings)
    log.propagate = False
    python_warnings.simplefilter("ignore")  # SQLAlchemy's, of nbgrader's gradebook
    CheckInTurn.turn = FileLock(f"{folder}/turn", poll_interval=POLL_S)
    judging.modules_folder = f"{folder}/modules"
    try:
        for line in sys.stdin:
            graded = grade(assignment, json.loads(line), warnings)
            answers.write(f"{json.dumps(graded)}\n")
            answers.flush()
    except KeyboardInterrupt:
        sys.exit(1)


def grade(assignment: str, student: str, warnings: Warnings) -> Graded:
    """Let nbgrader grade a student's submission, in place of any grade before."""
    began = time.monotonic()
    warnings.lines, CheckInTurn.verdicts = [], []
    error = ""
    with CheckInTurn.turn:
        config = gradebook.configuration()
        steps = config.Autograde.autograde_preprocessors
        config.Autograde.autograde_preprocessors = [
            CheckInTurn if step is grading.CheckExercises else step for step in steps
        ]
        course = CourseDirectory(config=config)
        course.assignment_id, course.student_id = assignment, glob.escape(student)
        converter = Autograde(coursedir=course, config=config)
        converter.force = True
        try:
            converter.start()
        except NbGraderException as failure:
            error = warnings.lines.pop() if warnings.lines else str(failure)
        except SystemExit as failure:  # what was handed in cannot be moved out of nbgrader's way
            error = str(failure)
    verdicts = CheckInTurn.verdicts
    seconds = time.monotonic() - began
    return Graded(student, sum(verdicts), len(verdicts), seconds, warnings.lines, error)


if __name__ == "__main__":
    main(*sys.argv[1:])
