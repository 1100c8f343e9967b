"""nbgrader's part of grading: each exercise is judged from the student's source, in a job of its own.

nbgrader would run the student's notebook and give points to each check cell that raises no error. Then a
student's cell could replace `check`, and `os._exit` in a cell would lose the whole submission. So the
preprocessor here takes the place of nbgrader's `Execute`. It runs no cell. For each check cell it reads the
student's function, lets labkit.exercises judge it in processes of its own, and writes the finding as the
output of the check cell: text for a right answer, an error for any other. nbgrader gives the points.

Nothing that one student hands in stops the grading of the others: marks in cells are written anew
(`RepairMarks`), and links are not followed (`Collect`, `set_links_aside`).

This module needs nbgrader, the extra `grading`. `labkit release --nbgrader` writes the settings that use it.
"""

from __future__ import annotations

import ast
import secrets
from functools import cache
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell, new_output
from nbgrader import preprocessors
from nbgrader.api import Gradebook
from nbgrader.exchange.default import ExchangeCollect
from nbgrader.utils import ignore_patterns
from traitlets.log import get_logger

from labkit.cli.course import copies
from labkit.cli.course.plain_files import NotPlain, copy_plain, not_plain
from labkit.exercises import catalogue, sandbox
from labkit.exercises.checking import grade_text
from labkit.exercises.exercise import Exercise, is_stub

REFUSED = "refused"  # the course's folder of what students have handed in and nbgrader must not read


def configure(c: Any) -> None:
    """Write the lab's settings into nbgrader's."""
    c.GenerateAssignment.preprocessors = GENERATE
    c.Autograde.sanitize_preprocessors = SANITIZE
    c.Autograde.autograde_preprocessors = AUTOGRADE
    c.Autograde.pre_convert_hook = set_links_aside
    c.ExchangeFactory.collect = Collect


class RepairMarks(preprocessors.NbGraderPreprocessor):
    """Write nbgrader's marks anew in a submitted notebook, as the course has recorded them.

    A student's copy of a check cell has its marks, too, and any mark can be edited. nbgrader would end the
    grading of the whole class for marks that it does not know. Of several cells with the same id, the last
    one keeps it.
    """

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        about = resources["nbgrader"]
        marks = recorded_marks(about)
        for cell in reversed(nb.cells):
            claimed = cell.metadata.pop("nbgrader", None)
            name = claimed.get("grade_id") if isinstance(claimed, dict) else None
            right = marks.pop(name, None) if isinstance(name, str) and cell.cell_type == "code" else None
            if right is not None:
                cell.metadata["nbgrader"] = right
            if claimed is not None and not is_same(claimed, right):
                self.log.warning(
                    "%s: marks of nbgrader in a cell were changed or copied; repaired", about["student"]
                )
        return nb, resources


def recorded_marks(about: Any) -> dict[str, dict[str, Any]]:
    """Return nbgrader's marks of the cells of a notebook, as the course has recorded them, by their ids."""
    with Gradebook(about["db_url"]) as gradebook:
        notebook = gradebook.find_notebook(about["notebook"], about["assignment"])
        marks = {cell.name: copies.answer_marks(cell.name) for cell in notebook.solution_cells}
        marks |= {cell.name: copies.check_marks(cell.name, cell.max_score) for cell in notebook.grade_cells}
    return marks


def is_same(claimed: Any, right: dict[str, Any] | None) -> bool:
    """Tell whether marks of a submitted cell are as they must be, besides their checksum."""
    return right is not None and all(claimed.get(name) == value for name, value in right.items())


class CheckExercises(preprocessors.NbGraderPreprocessor):
    """Judge the exercises of a submitted notebook, without running it."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        add_missing_checks(nb, resources["nbgrader"])
        code = [cell for cell in nb.cells if cell.cell_type == "code"]
        solved: set[str] = set()  # exercises above whose answer is right
        for index, cell in enumerate(code):
            if is_check(cell):
                name = cell.metadata["nbgrader"]["grade_id"].removeprefix(copies.CHECK_ID)
                cell.outputs = [output(name, answer_with_helpers(name, code[:index], solved))]
                if cell.outputs[0].output_type == "stream":
                    solved.add(name)
        return nb, resources


def answer_with_helpers(name: str, cells: list[Any], solved: set[str]) -> str:
    """Return what a student has written for an exercise, and the functions of other cells that it calls.

    As in the notebook, where `check` adds them: of another exercise that is not solved, that is the
    reference.
    """
    text = copies.answer(name, cells)
    exercise = catalogue.find(name)
    texts, waiting = {name: text}, [text]
    while waiting:
        for other in names_used(waiting.pop(), exercise):
            if other in texts:
                continue
            helper = helper_text(other, cells, solved)
            if helper:
                texts[other] = helper
                waiting.append(helper)
    return "\n\n".join(texts.values())


def names_used(text: str, exercise: Exercise) -> list[str]:
    """Return the names that a text uses, and neither defines itself nor gets from the exercise.

    Of a text that is not Python, there are none.
    """
    try:
        names = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
        given = [node for node in ast.walk(ast.parse(exercise.prelude)) if isinstance(node, ast.alias)]
    except (SyntaxError, ValueError, RecursionError):
        return []
    known = {*copies.functions(text), *(alias.asname or alias.name for alias in given)}
    return [name for name in dict.fromkeys(node.id for node in names) if name not in known]


def helper_text(name: str, cells: list[Any], solved: set[str]) -> str:
    """Return the text of the last function of this name that the cells define; empty if there is none."""
    defining = [cell for cell in cells if name in copies.functions(cell.source)]
    if not defining:
        return ""
    if name in catalogue.exercises() and name not in solved:
        return catalogue.find(name).text
    source = copies.without_magic(defining[-1].source)[1]
    node = copies.functions(source)[name]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


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


class Collect(ExchangeCollect):
    """nbgrader's `collect`, which refuses what is no plain file.

    nbgrader would follow a link, to any file that the instructor may read.
    """

    src_records: list[dict[str, Any]]

    def init_src(self) -> None:
        super().init_src()
        records: list[dict[str, Any]] = []
        for record in self.src_records:
            wrong = next(not_plain(Path(self.inbound_path, record["filename"])), None)
            if wrong is None:
                records.append(record)
            else:
                self.log.error("%s: not collected: %s is a link, or no file", record["username"], wrong)
        self.src_records = records

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        ignored = ignore_patterns(
            exclude=self.coursedir.ignore,
            include=self.coursedir.include,
            max_file_size=self.coursedir.max_file_size,
            log=self.log,
        )
        try:
            if self.get_size(src) > 1000 * self.coursedir.max_dir_size:
                raise NotPlain(f"{src} is larger than {self.coursedir.max_dir_size:,} kB")
            copy_plain(Path(src), Path(dest), ignored)
        except (NotPlain, OSError) as error:
            self.log.error("not collected: %s", error)


def set_links_aside(assignment: str, student: str, notebooks: list[str]) -> None:
    """Move what is no plain file from a student's submitted folder to the course's folder of refused files.

    nbgrader calls this before it copies a submission. Files may have come there in other ways than by
    `collect`.
    """
    for folder in {Path(notebook).parent for notebook in notebooks}:
        for path in list(not_plain(folder)):
            place = Path(REFUSED, f"{secrets.token_hex(4)}-{path.name}")
            place.parent.mkdir(exist_ok=True)
            path.rename(place)
            get_logger().error(f"{path} is a link, or no file: it is now {place}, and is not graded")


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
SANITIZE = [
    RepairMarks,
    preprocessors.ClearOutput,
    preprocessors.DeduplicateIds,
    preprocessors.OverwriteKernelspec,
    preprocessors.OverwriteCells,
    preprocessors.CheckCellMetadata,
]
AUTOGRADE = [
    CheckExercises,
    preprocessors.LimitOutput,
    preprocessors.SaveAutoGrades,
    preprocessors.AssignLatePenalties,
    preprocessors.CheckCellMetadata,
]
