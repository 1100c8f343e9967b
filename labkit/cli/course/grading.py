"""nbgrader's part of grading: each exercise is judged from the student's source, in a job of its own.

nbgrader would run the student's notebook and give points to each check cell that raises no error. Then a
student's cell could replace `check`, and `os._exit` in a cell would lose the whole submission. So the
preprocessor here takes the place of nbgrader's `Execute`. It runs no cell. For each check cell it reads the
student's function, lets labkit.exercises judge it in processes of its own, and writes the finding as the
output of the check cell: text for a right answer, an error for any other. nbgrader gives the points.

This module needs nbgrader, the extra `grading`. `labkit release --nbgrader` writes the settings that use it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from nbformat.v4 import new_code_cell, new_output
from nbgrader import preprocessors
from nbgrader.api import Gradebook
from traitlets.log import get_logger

from labkit.cli.course import copies
from labkit.exercises import catalogue, sandbox
from labkit.exercises.checking import grade_text
from labkit.exercises.exercise import is_stub


class CheckExercises(preprocessors.NbGraderPreprocessor):
    """Judge the exercises of a submitted notebook, without running it."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        add_missing_checks(nb, resources["nbgrader"])
        code = [cell for cell in nb.cells if cell.cell_type == "code"]
        for index, cell in enumerate(code):
            if is_check(cell):
                name = cell.metadata["nbgrader"]["grade_id"].removeprefix(copies.CHECK_ID)
                cell.outputs = [output(name, copies.answer(name, code[:index]))]
        return nb, resources


def is_check(cell: Any) -> bool:
    """Return whether nbgrader gives points for this cell."""
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def add_missing_checks(notebook: Any, about: Any) -> None:
    """Put check cells that the student has deleted at the end of the notebook.

    nbgrader's own `OverwriteCells.add_missing_cells` fails if the answer's cell is missing, too.
    """
    there = {cell.metadata["nbgrader"]["grade_id"] for cell in notebook.cells if is_check(cell)}
    with Gradebook(about["db_url"]) as gradebook:
        recorded = gradebook.find_notebook(about["notebook"], about["assignment"])
        sources = {cell.name: cell.source for cell in recorded.source_cells}
        for cell in recorded.grade_cells:
            if cell.name not in there:
                marks = copies.check_marks(cell.name, cell.max_score)
                notebook.cells.append(new_code_cell(sources[cell.name], metadata={"nbgrader": marks}))


@cache
def has_sandbox() -> bool:
    """Return whether submissions run in a sandbox; if they do not, say so once."""
    if why := sandbox.refusal():
        get_logger().warning(
            f"Submissions run with all of your rights: this system allows no sandbox ({why}). "
            "docs/grading.md says what they can do then."
        )
    return not why


class NotGraded(Exception):
    """The check itself failed: nbgrader shows this error and gives no points, also not 0."""


def output(name: str, text: str) -> Any:
    """Judge the text of the cell that defines a function, and return the output of the check cell.

    That is text for a correct function, and an error, for which nbgrader gives no points, for any other.
    """
    exercise = catalogue.find(name)
    if not text.strip() or is_stub(text, name):
        return _error("NotWritten", f"{name}: not written.")
    found = grade_text(exercise, text, sandboxed=has_sandbox())
    if found.check_failed:
        raise NotGraded(f"{name}: the check itself failed: {found.finding}")
    if not found.passed:
        return _error("NotCorrect", f"{name}: not correct: {found.finding}.")
    return new_output("stream", name="stdout", text=f"{name}: correct ({found.cases} cases).\n")


def _error(kind: str, words: str) -> Any:
    return new_output("error", ename=kind, evalue=words, traceback=[words])


# nbgrader's own lists, without the step that replaces an answer by its stub (the sources hold stubs), and
# with CheckExercises in place of Execute.
GENERATE = [
    preprocessors.LockCells,
    preprocessors.ClearOutput,
    preprocessors.CheckCellMetadata,
    preprocessors.ComputeChecksums,
    preprocessors.SaveCells,
    preprocessors.CheckCellMetadata,
]
AUTOGRADE = [
    CheckExercises,
    preprocessors.LimitOutput,
    preprocessors.SaveAutoGrades,
    preprocessors.AssignLatePenalties,
    preprocessors.CheckCellMetadata,
]
