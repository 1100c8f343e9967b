"""The questions of a notebook in a course: cells that an instructor gives points for, by a rubric.

In a notebook, a question is a code cell that calls `answer("05-model", …)`, once or for several names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from nbformat.v4 import new_markdown_cell

from labkit.exercises import catalogue
from labkit.exercises.checking import VERDICTS
from labkit.text import counted

CALL = re.compile(r"""^answer\(\s*["']([\w-]+)["']""", re.MULTILINE)
QUESTION_ID = "question-"  # nbgrader's id of a question's cell is this and the name of its first question
QUESTION_POINTS, VERDICT_POINTS = 1, 2
RUBRIC = (
    "1 point for the reason or the number that the model answer gives, in any words; half a point for a part."
)
VERDICT_RUBRIC = (
    "1 point if `predicts` names a quantity, and which values of it the sentence implies; 1 point if "
    '`rejected_by` names a number with its printed value, "our run" or "not printed", of which one possible '
    "value speaks against the sentence and another does not. None for the verdict itself: the notebook shows "
    "ours. Both count as they were at the first attempt, which the output shows."
)


class Question(NamedTuple):
    """A cell of a notebook that asks one question, or several."""

    cell: Any
    names: tuple[str, ...]

    @property
    def grade_id(self) -> str:
        """Return nbgrader's id of the cell."""
        return f"{QUESTION_ID}{self.names[0]}"

    @property
    def points(self) -> int:
        """Return the most points that the answers get."""
        return sum(VERDICT_POINTS if is_verdict(name) else QUESTION_POINTS for name in self.names)


def questions(notebook: Any) -> Iterator[Question]:
    """Yield the questions of a notebook in their order."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            names = names_in(cell.source)
            if names:
                yield Question(cell, names)


def names_in(source: str) -> tuple[str, ...]:
    """Return the names of the questions that a cell answers."""
    known = catalogue.questions()
    return tuple(name for name in CALL.findall(source) if name in known)


def is_verdict(name: str) -> bool:
    """Tell whether a question asks for a verdict on a sentence, with the numbers that decide."""
    return catalogue.questions()[name].partition(":")[0] in VERDICTS


def marks(question: Question) -> dict[str, Any]:
    """Return nbgrader's metadata of a cell that the student writes in, and a person gives points for."""
    return marks_of(question.grade_id, question.points)


def marks_of(grade_id: str, points: float, cell_type: str = "code") -> dict[str, Any]:
    """Return nbgrader's metadata of a cell with this id for which a person gives points."""
    return {
        "schema_version": 3,
        "cell_type": cell_type,
        "task": False,
        "grade_id": grade_id,
        "grade": True,
        "solution": True,
        "locked": False,
        "points": points,
    }


def model_answer(names: tuple[str, ...]) -> Any:
    """Return a Markdown cell with the rubric and the model answers of a cell's questions."""
    texts = ["**Rubric and model answer**"]
    for name in names:
        rubric, points = (VERDICT_RUBRIC, VERDICT_POINTS) if is_verdict(name) else (RUBRIC, QUESTION_POINTS)
        texts.append(f"`{name}`, {counted(points, 'point')}: {rubric}")
        texts.append(f"> {catalogue.questions()[name]}")
    return new_markdown_cell("\n\n".join(texts))


def add_model_answers(notebook: Any) -> None:
    """Put the rubric and the model answer below each question."""
    for question in list(questions(notebook)):
        place = notebook.cells.index(question.cell) + 1
        notebook.cells.insert(place, model_answer(question.names))


def section(number: str) -> str:
    """Return the questions of a notebook, as "05", with their model answers, as Markdown; empty if none."""
    models = {
        name: model for name, model in catalogue.questions().items() if name.partition("-")[0] == number
    }
    if not models:
        return ""
    items = [f"- `{name}`: {model}" for name, model in models.items()]
    return "\n".join(["### Model answers", "", *items])
