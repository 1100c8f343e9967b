"""A course of nbgrader in a folder: students hand in, nbgrader grades, and a test reads the marks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from labkit.checks.exercise import ORIGINALS
from labkit.cli.course import copies

ROOT = Path(__file__).parents[2]
LIMIT_S = 1200  # for one command on a busy machine; grading runs some ten jobs for each notebook
ASSIGNMENTS = [path.stem for path in sorted(ORIGINALS.glob("*.ipynb"))]

# nbgrader starts `alembic` by its name.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


class Mark(NamedTuple):
    """What nbgrader says of an exercise: its points, the most there are, and the finding if it is wrong."""

    points: float
    full_points: float
    finding: str

    @property
    def passed(self) -> bool:
        """Return whether the grader calls the answer correct."""
        return not self.finding


class Course:
    """A course of nbgrader, made as an instructor makes it. An assignment is generated when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run_module("labkit", "release", "--nbgrader", str(folder), cwd=ROOT)

    def command(self, *words: str, code: int | None = 0) -> str:
        """Run a command of nbgrader in the course's folder, and return what it prints."""
        return run_module("nbgrader", *words, cwd=self.folder, code=code)

    def released(self, assignment: str) -> Any:
        """Return the notebook that students get."""
        path = self.folder / "release" / assignment / f"{assignment}.ipynb"
        if not path.exists():
            self.command("generate_assignment", assignment)
        return nbformat.read(path, as_version=4)

    def submission(self, student: str, assignment: str) -> Path:
        """Return the path of what a student hands in."""
        path = self.folder / "submitted" / student / assignment / f"{assignment}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def hand_in(self, student: str, assignment: str, notebook: Any) -> None:
        """Put a student's notebook where nbgrader looks for it."""
        text = nbformat.writes(notebook)
        # nbformat would write half of a character as it is.
        self.submission(student, assignment).write_text(json.dumps(json.loads(text)))

    def grade(self, assignment: str, code: int | None = 0) -> str:
        """Let nbgrader grade what was handed in and not graded before; return what it prints."""
        return self.command("autograde", assignment, code=code)

    def marks(self, student: str, assignment: str) -> dict[str, Mark]:
        """Return what nbgrader says of each exercise of a student's notebook, by its name."""
        from nbgrader.api import Gradebook  # noqa: PLC0415  (the extra `grading`)

        graded = nbformat.read(
            self.folder / "autograded" / student / assignment / f"{assignment}.ipynb", as_version=4
        )
        findings = {}
        for cell in graded.cells:
            marks = cell.metadata.get("nbgrader", {})
            if marks.get("grade") and not marks.get("solution"):  # a question has points, and no finding
                findings[marks["grade_id"]] = finding_in(cell)
        with Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}") as gradebook:
            submitted = gradebook.find_submission_notebook(assignment, assignment, student)
            return {
                grade.name.removeprefix(copies.CHECK_ID): Mark(
                    grade.score, grade.max_score, findings[grade.name]
                )
                for grade in submitted.grades
                if grade.name in findings
            }


def run_module(*words: str, cwd: Path, code: int | None = 0) -> str:
    """Run a module of this Python and return what it prints; its exit code must be `code`, unless None."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=cwd,
        env=ENVIRONMENT,
        timeout=LIMIT_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert code in (None, done.returncode), done.stdout
    return done.stdout


def finding_in(check: Any) -> str:
    """Return the finding in the output of a graded check cell; empty if the answer is correct."""
    (output,) = check.outputs
    if output.output_type == "stream":
        return ""
    if output.output_type == "execute_result":  # some parts of the answer are right
        return str(output.data["text/html"])
    said: str = output.evalue
    return said.partition("not correct: ")[2] or said
