"""What a copy of a notebook holds: a student's stubs, an instructor's solutions, nbgrader's metadata; the
list of exercises for instructors.

An author marks an exercise by tags: a code cell `exercise` holds the stub, and the cell `check` after it is
`name = check(name)`. Both may begin with `%%px`. Functions here change the notebook that they are given.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from labkit.checks import answers
from labkit.checks.exercise import Exercise, is_stub
from labkit.cli.course import questions
from labkit.exercises import catalogue
from labkit.text import counted

CHECK = re.compile(r"(?:%%px[^\n]*\n)?\s*(\w+) = check\(\1\)\s*")
CHECK_ID = "check-"  # nbgrader's id of a check cell is this and the function's name
COMMON_MARKS = {"schema_version": 3, "cell_type": "code", "task": False}
FOR_INSTRUCTORS = "> **Solutions, for instructors.** Do not hand this notebook out."


class CopyError(Exception):
    """A notebook cannot be copied for a course."""


class Pair(NamedTuple):
    """An exercise in a notebook: the cell that the student writes in, and the cell that checks it."""

    name: str
    stub: Any
    check: Any


def pairs(notebook: Any) -> list[Pair]:
    """Return the exercises of an author's notebook in their order; `stub` is None if no cell defines it."""
    pairs_of_cells = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for index, cell in enumerate(code):
        name = checked(cell)
        if name:
            above = [earlier for earlier in code[:index] if name in functions(earlier.source)]
            pairs_of_cells.append(Pair(name, above[-1] if above else None, cell))
    return pairs_of_cells


def answer(name: str, cells: list[Any]) -> str:
    """Return the source, without its magic, of what a student has written for an exercise.

    `cells` are the code cells above the check. It is the last one that defines the function, as when the
    notebook runs from top to bottom. If none does, as after a syntax error, it is the cell of the exercise.
    """
    defining = [cell for cell in cells if defines(cell.source, name)]
    marked = [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("grade_id") == name]
    cells_of_exercise = defining or marked
    return without_magic(cells_of_exercise[-1].source)[1] if cells_of_exercise else ""


def answer_with_helpers(name: str, cells: list[Any], solved: Container[str]) -> str:
    """Return what a student has written for an exercise, and the functions of other cells that it calls.

    As in the notebook, where `check` adds them: of another exercise that is not solved, that is the
    reference.
    """
    text = answer(name, cells)
    exercise = catalogue.find(name)
    # A notebook may define a function that has the name of another notebook's exercise.
    of_notebook = {
        other_exercise.name
        for other_exercise in catalogue.exercises().values()
        if other_exercise.notebook == exercise.notebook
    }
    unsolved = {other_name for other_name in of_notebook if other_name not in solved}
    texts, waiting = {name: text}, [text]
    while waiting:
        for other in answers.names_used(waiting.pop(), exercise.prelude):
            if other in texts:
                continue
            helper = helper_text(other, cells)
            if helper and other in unsolved:
                helper = catalogue.find(other).text
            if helper:
                texts[other] = helper
                waiting.append(helper)
    return "\n\n".join(texts.values())


def helper_text(name: str, cells: list[Any]) -> str:
    """Return the text of the last function of this name that the cells define; empty if there is none."""
    defining = [cell for cell in cells if defines(cell.source, name)]
    if not defining:
        return ""
    source = without_magic(defining[-1].source)[1]
    node = functions(source).get(name) or lambdas(source)[name]
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


def checked(cell: Any) -> str:
    """Return the name of the function that a cell checks, or an empty text."""
    match = CHECK.fullmatch(cell.source)
    return match[1] if match and "check" in cell.metadata.get("tags", []) else ""


def without_magic(source: str) -> tuple[str, str]:
    """Return the line `%%px …` or `%%replay …` of a cell, with its end, and the rest; empty without one.

    Comments and empty lines may stand above it, as in the lab's notebooks.
    """
    lines = source.splitlines(keepends=True)
    above = list(takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), lines))
    if len(above) < len(lines) and lines[len(above)].startswith(("%%px", "%%replay")):
        return lines[len(above)], "".join([*above, *lines[len(above) + 1 :]])
    return "", source


@lru_cache(maxsize=1000)
def functions(source: str) -> dict[str, ast.FunctionDef]:
    """Return the functions that a cell defines at its top level; none if it is not Python.

    The caller must not change the result: it is kept, since graders ask for many names in the same cells.
    """
    try:
        tree = ast.parse(without_magic(source)[1])
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deep for the parser
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def lambdas(source: str) -> dict[str, ast.Assign]:
    """Return the functions that a cell defines at its top level as `name = lambda …`."""
    tree = answers.parsed(without_magic(source)[1])
    assignments: dict[str, ast.Assign] = {}
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            assignments |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return assignments


def defines(source: str, name: str) -> bool:
    """Tell whether a cell defines a function of this name at its top level."""
    return name in functions(source) or name in lambdas(source)


def clear(notebook: Any) -> None:
    """Remove the outputs of all cells, and cells with the tag `solution`."""
    notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None


def release(notebook: Any, exercises: dict[str, Exercise]) -> None:
    """Make a student's copy: no outputs, and stubs where the student writes.

    Raises CopyError if an exercise is unknown, or if its cell holds more than a stub.
    """
    clear(notebook)
    for name, stub, _ in _known_pairs(notebook, exercises):
        if not is_stub(without_magic(stub.source)[1], name):
            raise CopyError(f"the cell of {name} holds code; an author's notebook holds a stub")


def solve(notebook: Any, exercises: dict[str, Exercise]) -> None:
    """Make an instructor's copy: the reference's source in place of each stub, and the model answers."""
    clear(notebook)
    for name, stub, _ in _known_pairs(notebook, exercises):
        write_answer(stub, name, exercises[name].text)
    questions.add_model_answers(notebook)
    title = next(cell for cell in notebook.cells if cell.cell_type == "markdown")
    title.source += f"\n\n{FOR_INSTRUCTORS}"


def write_answer(stub: Any, name: str, text: str) -> None:
    """Put a function's text in place of the stub of this name that a cell holds."""
    magic, body = without_magic(stub.source)
    node = functions(stub.source)[name]
    lines = body.splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines[first - 1 : _end_of_stub(node, lines)] = text.splitlines()
    stub.source = magic + "\n".join(lines)


def add_nbgrader(notebook: Any, exercises: dict[str, Exercise], with_questions: bool = True) -> None:
    """Mark each exercise for nbgrader: the answer is the student's, the check gives the points.

    The instructor gives the points of questions; `with_questions` says whether there are any.
    """
    if with_questions:
        for question in questions.questions(notebook):
            question.cell.metadata["nbgrader"] = questions.marks(question)
    for name, stub, check in _known_pairs(notebook, exercises):
        stub.metadata["nbgrader"] = answer_marks(name)
        check.metadata["nbgrader"] = check_marks(f"{CHECK_ID}{name}", exercises[name].points)


def answer_marks(name: str) -> dict[str, Any]:
    """Return nbgrader's metadata of a cell that the student changes."""
    return COMMON_MARKS | {"grade_id": name, "grade": False, "solution": True, "locked": False}


def check_marks(grade_id: str, points: float) -> dict[str, Any]:
    """Return nbgrader's metadata of a cell that gives points, and that the student must not change."""
    marks = {"grade_id": grade_id, "grade": True, "solution": False, "locked": True, "points": points}
    return COMMON_MARKS | marks


def _known_pairs(notebook: Any, exercises: dict[str, Exercise]) -> Iterator[Pair]:
    for pair in pairs(notebook):
        if pair.name not in exercises:
            raise CopyError(f"{pair.name} is checked, but labkit/exercises does not have it")
        if pair.stub is None:
            raise CopyError(f"{pair.name} is checked, but no cell above the check defines it")
        yield pair


def _end_of_stub(node: ast.FunctionDef, lines: list[str]) -> int:
    """Return the number of the stub's last line, with the comments that follow inside it."""
    end = node.end_lineno or node.lineno
    while end < len(lines) and lines[end].strip().startswith("#") and lines[end][:1].isspace():
        end += 1
    return end


HEAD = """\
# The exercises

Made by `labkit solutions` from `labkit/exercises`. Minutes are those of the exercises for a student
with the prerequisites; reading and the other cells take more time. Difficulty runs from 1, a formula
to type, to 5, an idea to find.
"""


def markdown(exercises: Iterable[Exercise], titles: dict[str, str]) -> str:
    """Return the list as a Markdown text. `titles` maps a notebook's number, as "05", to its title."""
    by_notebook: dict[str, list[Exercise]] = {number: [] for number in titles}
    for exercise in exercises:
        by_notebook.setdefault(exercise.notebook, []).append(exercise)
    every = [exercise for some in by_notebook.values() for exercise in some]
    rows = [_row(titles.get(number, number), some) for number, some in by_notebook.items()]
    table = ["| Notebook | Exercises | Minutes | Points |", "|---|---|---|---|", *rows, _row("all", every)]
    parts = [HEAD, "\n".join(table)]
    for number, some in by_notebook.items():
        if some:
            parts += [f"## {titles.get(number, number)}", *map(_section, some), questions.section(number)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _row(title: str, exercises: Sequence[Exercise]) -> str:
    minutes = sum(exercise.heading.minutes for exercise in exercises)
    points = sum(exercise.points for exercise in exercises)
    return f"| {title} | {len(exercises)} | {minutes} | {points} |"


def _section(exercise: Exercise) -> str:
    """Return the section of an exercise: its numbers, and the mistakes that its check names."""
    points = counted(exercise.points, "point")
    difficulty = f"difficulty {exercise.heading.difficulty} of 5"
    lines = [
        f"### {exercise.heading.title}",
        "",
        f"`{exercise.name}` · {difficulty} · {exercise.heading.minutes} minutes · {points}",
        "",
    ]
    return "\n".join([*lines, *(f"- {mistake.rstrip('.')}." for mistake in exercise.recognised)])
