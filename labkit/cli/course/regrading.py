"""Judge one exercise of a whole class again, after its check was mended; compare a class's functions.

This module needs nbgrader, the extra `grading`.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbgrader import preprocessors
from nbgrader.utils import determine_grade

from labkit.cli.course import copies, gradebook, grading
from labkit.exercises import catalogue
from labkit.files import atomic_write
from labkit.text import counted

AUTOGRADED = "autograded"


class Change(NamedTuple):
    """The points of a student for an exercise, before and after it was judged again."""

    student: str
    before: float
    after: float
    has_manual: bool  # a person has given points, which still count


def notebooks(assignment: str) -> Iterator[tuple[str, Path, Any]]:
    """Yield for each student who was graded: the name, the path of the graded notebook, and the notebook."""
    for path in sorted(Path(AUTOGRADED).glob(f"*/{assignment}/{assignment}.ipynb")):
        yield path.parents[1].name, path, nbformat.read(path, as_version=4)


def regrade(name: str, assignment: str, say: Callable[[str], None]) -> list[Change]:
    """Judge an exercise of all graded notebooks again, and record the points; return the changes.

    The answers to other exercises keep their verdicts. What a person has given stays. Equal texts are judged
    once.
    """
    changes = []
    outputs: dict[str, Any] = {}
    for student, path, notebook in notebooks(assignment):
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        check = check_of(name, code)
        if check is None:
            say(f"{student}: no check of {name}; nbgrader autograde judges the whole notebook")
            continue
        cells, solved = answer_above(name, check, code)
        text = copies.answer_with_helpers(name, cells, solved)
        if text not in outputs:
            outputs[text] = grading.output(name, text)
        check.outputs = [copy.deepcopy(outputs[text])]
        grading.fit_points(check)
        changes.append(_record(student, assignment, check, notebook))
        with atomic_write(path) as file:
            file.write(f"{nbformat.writes(notebook)}\n".encode())
        change = changes[-1]
        if change.before != change.after:
            say(f"{student}: {change.before:g} → {change.after:g} points")
    return changes


def check_of(name: str, code: list[Any]) -> Any:
    """Return the cell that checks an exercise; None if there is none."""
    grade_id = f"{copies.CHECK_ID}{name}"
    checks = [cell for cell in code if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id]
    return checks[-1] if checks else None


def answer_above(name: str, check: Any, code: list[Any]) -> tuple[list[Any], set[str]]:
    """Return the cells that an answer is read from, and which exercises above are solved, as grading does."""
    above = code[: code.index(check)]
    cells = above if copies.answer(name, above) else code
    solved = {
        cell.metadata["nbgrader"]["grade_id"].removeprefix(copies.CHECK_ID)
        for cell in above
        if grading.is_check(cell) and cell.outputs and grading.is_correct(cell.outputs[0])
    }
    return cells, solved


def _record(student: str, assignment: str, check: Any, notebook: Any) -> Change:
    """Write the points of a check into the gradebook, and what lateness costs now; return the change."""
    grade_id = check.metadata["nbgrader"]["grade_id"]
    with gradebook.opened() as book:
        grade = book.find_grade(grade_id, assignment, assignment, student)
        before = float(grade.auto_score or 0.0)
        grade.auto_score = determine_grade(check)[0]
        after, has_manual = float(grade.auto_score), grade.manual_score is not None
        grade.needs_manual_grade = has_manual
        book.db.commit()
    about = {"notebook": assignment, "assignment": assignment, "student": student}
    about["db_url"] = gradebook.database()
    penalties = preprocessors.AssignLatePenalties(config=gradebook.configuration())
    penalties.preprocess(copy.copy(notebook), {"nbgrader": about})
    return Change(student, before, after, has_manual)


def summary(name: str, changes: list[Change]) -> str:
    """Return how many students have other points now."""
    changed = [change for change in changes if change.before != change.after]
    manual = [change.student for change in changed if change.has_manual]
    lines = [
        f"{name}: {counted(len(changes), 'student')} judged again, "
        f"{counted(len(changed), 'student')} with other points."
    ]
    if manual:
        lines.append(f"Points that you gave by hand still count; look at {', '.join(manual)} in formgrader.")
    return "\n".join(lines)


class Alike(NamedTuple):
    """Students whose functions are equal but for names, comments and layout; `size` counts statements."""

    exercise: str
    students: tuple[str, ...]
    is_reference: bool
    size: int


def alike(assignment: str) -> tuple[list[Alike], dict[str, int]]:
    """Return the groups of equal functions in a class, the largest functions first, and how many wrote each.

    A group has two students or more, or one whose function equals the reference.
    """
    number = assignment.partition("_")[0]
    exercises = [exercise for exercise in catalogue.exercises().values() if exercise.notebook == number]
    forms: dict[str, dict[str, list[str]]] = {exercise.name: {} for exercise in exercises}
    for student, _, notebook in notebooks(assignment):
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for name, by_form in forms.items():
            form = normal_form(copies.answer(name, code), name)
            if form:
                by_form.setdefault(form, []).append(student)
    groups, counts = [], {}
    for exercise in exercises:
        reference = normal_form(exercise.text, exercise.name)
        by_form = forms[exercise.name]
        counts[exercise.name] = sum(map(len, by_form.values()))
        for form, students in by_form.items():
            if len(students) > 1 or form == reference:
                groups.append(Alike(exercise.name, tuple(students), form == reference, form.count("\n") + 1))
    return sorted(groups, key=lambda group: -group.size), counts


def normal_form(text: str, name: str) -> str:
    """Return a function without comments, docstring, annotations, layout and its own choice of names.

    Nothing if the text does not define it, or if its body is only a docstring or `pass`.
    """
    try:
        tree = ast.parse(copies.without_magic(text)[1])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not nodes:
        return ""
    function = _Plain().visit(copy.deepcopy(nodes[-1]))
    if not function.body:
        return ""
    names: dict[str, str] = {name: name}
    _Renaming(_bound_names(function), names).visit(function)
    return ast.unparse(function)


def _bound_names(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function chooses: of arguments, variables and functions in it."""
    chosen = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            chosen.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            chosen.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            chosen.add(node.name)
    return chosen


class _Plain(ast.NodeTransformer):
    """Remove docstrings, annotations and statements that do nothing."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        node.decorator_list = []
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        return None if node.value is None else ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None


class _Renaming(ast.NodeTransformer):
    """Number the names that a function chooses in the order in which they appear."""

    def __init__(self, chosen: set[str], names: dict[str, str]) -> None:
        self.chosen = chosen
        self.names = names

    def _new(self, name: str) -> str:
        if name not in self.chosen:
            return name
        return self.names.setdefault(name, f"v{len(self.names)}")

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._new(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._new(node.arg)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.name = self._new(node.name)
        self.generic_visit(node)
        return node


LIMITS = (
    "A hint, no proof: short functions have one natural form, and a copy with two lines exchanged is not "
    "found. Let the students explain the function."
)


def alike_text(groups: list[Alike], counts: dict[str, int]) -> str:
    """Return the groups as lines, and what they do not show."""
    lines = []
    for group in groups:
        same = "equal to the reference" if group.is_reference else "equal"
        of_class = f"{len(group.students)} of {counts[group.exercise]}"
        length = counted(group.size, "line")
        lines.append(f"{group.exercise} ({length}), {of_class} {same}: {', '.join(group.students)}")
    return "\n".join([*lines, LIMITS])


def alike_json(groups: list[Alike]) -> str:
    """Return the groups as JSON."""
    return json.dumps([group._asdict() for group in groups], indent=1)
