"""nbgrader's part of grading: each exercise is judged from the student's source, in a job of its own.

nbgrader would run the student's notebook and give points to each check cell that raises no error. Then a
student's cell could replace `check`, and `os._exit` in a cell would lose the whole submission. So the
preprocessor here takes the place of nbgrader's `Execute`. It runs no cell. For each check cell it reads the
student's function, lets labkit.exercises judge it in processes of its own, and writes the finding as the
output of the check cell: text for a right answer, an error for any other. nbgrader gives the points.

Nothing that one student hands in stops the grading of the others: marks in cells are written anew
(`RepairMarks`), and links are not followed (`Collect`, `set_aside`).

This module needs nbgrader, the extra `grading`. `labkit release --nbgrader` writes the settings that use it.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbgrader import preprocessors
from nbgrader.api import Gradebook
from nbgrader.exchange.default import ExchangeCollect
from nbgrader.utils import ignore_patterns, parse_utc
from traitlets.log import get_logger

from labkit.checks import sandbox
from labkit.checks.exercise import Exercise, HeadingError, Verdict, is_stub
from labkit.checks.judging import grade_text
from labkit.checks.transport import Unreadable, read_bytes
from labkit.cli.course import copies, questions, sixth_report
from labkit.cli.course.plain_files import NotPlain, copy_plain, not_plain, shared_files
from labkit.cli.course.submissions import SUBMITTED
from labkit.exercises import catalogue
from labkit.files import printable
from labkit.text import counted

MOST_NOTEBOOK_BYTES = 50 << 20  # nbgrader needs ten times as much memory to read a notebook
MOST_CELLS = 5000  # of a notebook, for the same reason; the lab's have a hundred
MOST_CHARACTERS = 100_000  # of a cell: Python needs a thousand times as much memory to read its code
MOST_CODE = 1_000_000  # characters of all code cells
MOST_PRINTED = 20_000  # characters that a question's cell has printed
MOST_FILES = 500  # of a submission; nbgrader reads a folder's list of names once for each file
MOST_TIMESTAMP_BYTES = 100  # of the file of the time of a submission; nbgrader would read more for hours
TIME = "timestamp.txt"  # of a submission: the name that nbgrader gives to the file with its time
SUBMITTED_AS = "labkit_submitted"  # in the metadata of a graded notebook: the hash of what was handed in
REFUSED = "refused"  # the course's folder of what students have handed in and nbgrader must not read


def configure(c: Any) -> None:
    """Write the lab's settings into nbgrader's."""
    c.GenerateAssignment.preprocessors = GENERATE
    c.Autograde.sanitize_preprocessors = SANITIZE
    c.Autograde.autograde_preprocessors = AUTOGRADE
    c.Autograde.pre_convert_hook = set_aside
    c.ExchangeFactory.collect = Collect
    c.GenerateFeedback.exporter_class = FeedbackPage
    # nbgrader reads the time of a submission that was graded or collected before, ahead of all hooks.
    for timestamp in Path(SUBMITTED).glob(f"*/*/{TIME}"):
        refuse_what_is_no_time(timestamp)


class RepairMarks(preprocessors.NbGraderPreprocessor):
    """Write nbgrader's marks anew in a submitted notebook, as the course has recorded them.

    A student's copy of a check cell has its marks, too, and any mark can be edited. nbgrader would end the
    grading of the whole class for marks that it does not know. Of several cells with the same id, the last
    one keeps it. A cell that defines a function is no check, whatever its marks say: nbgrader writes the text
    of a check cell anew, and the student's work would be lost.
    """

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        about = resources["nbgrader"]
        if len(nb.cells) > MOST_CELLS:
            raise NotGraded(f"{about['student']}: the notebook has more than {MOST_CELLS:,} cells")
        make_plain(nb.cells)
        leave_long_cells_out(nb.cells)
        if about["assignment"] == sixth_report.NAME:
            sixth_report.prepare(nb, recorded_points(about))
            return nb, resources
        if sum(len(cell.source) for cell in nb.cells if cell.cell_type == "code") > MOST_CODE:
            raise NotGraded(f"{about['student']}: the code has more than {MOST_CODE:,} characters")
        marks = recorded_marks(about)
        repaired = 0
        for cell in reversed(nb.cells):
            claimed = cell.metadata.pop("nbgrader", None)
            name = claimed.get("grade_id") if isinstance(claimed, dict) else None
            right = None
            if isinstance(name, str) and name in marks and may_have(cell, marks[name]):
                right = marks.pop(name)
                cell.metadata["nbgrader"] = right
            if claimed is not None and not is_same(claimed, right):
                repaired += 1
        mark_questions(nb.cells, marks, about)
        if repaired:
            self.log.warning(
                "%s: marks of nbgrader in %s were changed or copied; repaired",
                about["student"],
                counted(repaired, "cell"),
            )
        return nb, resources


def mark_questions(cells: list[Any], marks: dict[str, dict[str, Any]], about: Any) -> None:
    """Give the marks of questions that no cell has to the last cell that answers them.

    A student may have worked in a copy that nbgrader has not made. If no cell answers, the question comes at
    the end, as it was handed out.
    """
    sources = recorded_sources(about)
    missing = {name: mark for name, mark in marks.items() if is_manual(mark)}
    for grade_id, mark in missing.items():
        names = questions.names_in(sources[grade_id])
        answering = [cell for cell in cells if cell.cell_type == "code" and "nbgrader" not in cell.metadata]
        answering = [cell for cell in answering if set(names) & set(questions.names_in(cell.source))]
        if not answering:
            answering = [new_code_cell(sources[grade_id])]
            cells += answering
        answering[-1].metadata["nbgrader"] = mark


def is_manual(marks: Any) -> bool:
    """Tell whether nbgrader's marks are those of a cell that a person gives points for."""
    return bool(marks.get("grade") and marks.get("solution"))


def recorded_sources(about: Any) -> dict[str, str]:
    """Return the texts of a notebook's cells as they were handed out, by nbgrader's ids."""
    with Gradebook(about["db_url"]) as gradebook:
        recorded = gradebook.find_notebook(about["notebook"], about["assignment"])
        return {cell.name: cell.source for cell in recorded.source_cells}


def make_plain(cells: list[Any]) -> None:
    """Leave of each cell a source that is text and can be written, and nbgrader's marks.

    Half of a character, as a shortened emoji leaves it, can be written to no file. Other metadata can hold
    the same.
    """
    for cell in cells:
        if not isinstance(cell.get("source"), str):
            cell.source = "# This cell held no text."
        cell.source = cell.source.encode("utf-8", "replace").decode()
        claimed = cell.metadata.get("nbgrader")
        cell.metadata = NotebookNode() if claimed is None else NotebookNode(nbgrader=claimed)


def leave_long_cells_out(cells: list[Any]) -> None:
    """Write how long a cell was in place of a source that is too long to be read."""
    for cell in cells:
        if len(cell.source) > MOST_CHARACTERS:
            cell.source = f"# This cell had {len(cell.source):,} characters: too many to be graded."


def may_have(cell: Any, marks: dict[str, Any]) -> bool:
    """Tell whether a submitted cell can be the one that has these marks."""
    may_define = not marks["grade"] or is_manual(marks)
    return cell.cell_type == "code" and (may_define or not copies.functions(cell.source))


def recorded_marks(about: Any) -> dict[str, dict[str, Any]]:
    """Return nbgrader's marks of the cells of a notebook, as the course has recorded them, by their ids."""
    with Gradebook(about["db_url"]) as gradebook:
        notebook = gradebook.find_notebook(about["notebook"], about["assignment"])
        marks = {cell.name: copies.answer_marks(cell.name) for cell in notebook.solution_cells}
        for cell in notebook.grade_cells:
            make = questions.marks_of if cell.name in marks else copies.check_marks
            marks[cell.name] = make(cell.name, cell.max_score)
    return marks


def recorded_points(about: Any) -> dict[str, float]:
    """Return the most points of the cells of a notebook, as the course has recorded them, by their ids."""
    with Gradebook(about["db_url"]) as gradebook:
        notebook = gradebook.find_notebook(about["notebook"], about["assignment"])
        return {cell.name: cell.max_score for cell in notebook.grade_cells}


def is_same(claimed: Any, right: dict[str, Any] | None) -> bool:
    """Tell whether marks of a submitted cell are as they must be, besides their checksum."""
    return right is not None and all(claimed.get(name) == value for name, value in right.items())


class CheckExercises(preprocessors.NbGraderPreprocessor):
    """Judge the exercises of a submitted notebook, without running it."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        about = resources["nbgrader"]
        nb.metadata[SUBMITTED_AS] = digest(about["student"], about["assignment"])
        add_missing_checks(nb, about)
        code = [cell for cell in nb.cells if cell.cell_type == "code"]
        solved: set[str] = set()  # exercises above whose answer is right
        for index, cell in enumerate(code):
            if is_check(cell):
                name = cell.metadata["nbgrader"]["grade_id"].removeprefix(copies.CHECK_ID)
                above = code[:index]
                # A student can have moved the cells. Then the answer may stand below the check.
                cells = above if copies.answer(name, above) else code
                began = time.monotonic()
                cell.outputs = [self.judge(name, copies.answer_with_helpers(name, cells, solved))]
                fit_points(cell)
                if is_correct(cell.outputs[0]):
                    solved.add(name)
                verdict = "correct" if is_correct(cell.outputs[0]) else "not correct"
                self.log.info("%s: %s, after %.1f s", name, verdict, time.monotonic() - began)
        return nb, resources

    def judge(self, name: str, text: str) -> Any:
        """Judge the text of the cell that defines a function, and return the output of the check cell."""
        return output(name, text)


def digest(student: str, assignment: str) -> str:
    """Return a hash of what nbgrader reads of a submission: notebook and time; empty if it cannot be read."""
    folder = Path(SUBMITTED, student, assignment)
    try:
        files = [read_bytes(folder / name, MOST_NOTEBOOK_BYTES) for name in (f"{assignment}.ipynb", TIME)]
    except Unreadable:
        return ""
    return sha256(b"".join(sha256(content).digest() for content in files)).hexdigest()


def is_graded(student: str, assignment: str) -> bool:
    """Return whether a submission was graded to its end, and has not changed since then.

    nbgrader writes the notebook twice: before it grades, without outputs of checks, and after that.
    """
    path = Path("autograded", student, assignment, f"{assignment}.ipynb")
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError):
        return False
    return notebook.metadata.get(SUBMITTED_AS) == (digest(student, assignment) or None)


def is_check(cell: Any) -> bool:
    """Return whether nbgrader gives points for this cell, without a person."""
    marks = cell.metadata.get("nbgrader", {})
    return bool(marks.get("grade")) and not is_manual(marks)


def add_missing_checks(notebook: Any, about: Any) -> None:
    """Put check cells that the student has deleted at the end of the notebook.

    nbgrader's own `OverwriteCells.add_missing_cells` fails if the answer's cell is missing, too.
    """
    there = {cell.metadata["nbgrader"]["grade_id"] for cell in notebook.cells if is_check(cell)}
    with Gradebook(about["db_url"]) as gradebook:
        recorded = gradebook.find_notebook(about["notebook"], about["assignment"])
        sources = {cell.name: cell.source for cell in recorded.source_cells}
        of_questions = {cell.name for cell in recorded.solution_cells}
        for cell in recorded.grade_cells:
            if cell.name not in there | of_questions:
                marks = copies.check_marks(cell.name, cell.max_score)
                notebook.cells.append(new_code_cell(sources[cell.name], metadata={"nbgrader": marks}))


class KeepAnswers(preprocessors.ClearOutput):
    """Remove the outputs, but of questions keep what was printed: it shows the first answer."""

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        printed = printed_text(cell) if is_manual(cell.metadata.get("nbgrader", {})) else ""
        cell, resources = super().preprocess_cell(cell, resources, index)
        if printed:
            cell.outputs = [new_output("stream", name="stdout", text=printed)]
        return cell, resources


def printed_text(cell: Any) -> str:
    """Return what a cell has printed, as text that can be written, without its end if it is long."""
    texts = [
        output.get("text") for output in cell.get("outputs", []) if output.get("output_type") == "stream"
    ]
    text = "".join(text for text in texts if isinstance(text, str))
    return text[:MOST_PRINTED].encode("utf-8", "replace").decode()


class AddRubrics(preprocessors.NbGraderPreprocessor):
    """Put the rubric and the model answer below each question, for whoever gives the points."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        for cell in list(nb.cells):
            marks = cell.metadata.get("nbgrader", {})
            if is_manual(marks):
                names = questions.names_in(recorded_sources(resources["nbgrader"])[marks["grade_id"]])
                if names:  # none in a row of the sixth report's rubric
                    nb.cells.insert(nb.cells.index(cell) + 1, questions.model_answer(names))
        return nb, resources


@cache
def has_sandbox() -> bool:
    """Return whether submissions run in a sandbox; if they do not, say so once."""
    why = sandbox.refusal()
    if why:
        get_logger().warning(
            f"Submissions run with all of your rights: this system allows no sandbox ({why}). "
            "docs/grading.md says what they can do then."
        )
    return not why


class NotGraded(Exception):
    """A submission cannot be graded: nbgrader shows this error and gives no points, also not 0."""


def output(name: str, text: str) -> Any:
    """Judge the text of the cell that defines a function, and return the output of the check cell.

    That is text for a correct function, and an error, for which nbgrader gives no points, for any other. If
    parts of the answer are right, it is their points, as nbgrader reads them, beside the findings.
    """
    exercise = catalogue.find(name)
    if not text.strip() or is_stub(text, name):
        return _error("NotWritten", f"{name}: not written.")
    verdict = grade_text(exercise, text, sandboxed=has_sandbox())
    if verdict.check_failed:
        raise NotGraded(f"{name}: the check itself failed: {verdict.finding}")
    if not verdict.passed and exercise.share_of_points(verdict) > 0:
        return partial_output(exercise, verdict)
    if not verdict.passed:
        return _error("NotCorrect", f"{name}: not correct: {verdict.finding}.")
    return new_output("stream", name="stdout", text=f"{name}: correct ({verdict.cases} cases).\n")


def is_correct(outcome: Any) -> bool:
    """Return whether the output of a check cell is that of a correct function."""
    return bool(outcome.output_type == "stream")


def partial_output(exercise: Exercise, verdict: Verdict) -> Any:
    """Return the output of a check cell for an answer of which some parts are right.

    nbgrader takes the points from the plain text of a result; a page shows the HTML.
    """
    points = exercise.points * exercise.share_of_points(verdict)
    total, rows = sum(exercise.parts.values()), ""
    row = "<tr><td>{}&emsp;</td><td>{}&emsp;</td><td>{}</td></tr>"
    for part, weight in exercise.parts.items():
        finding = verdict.parts[part]
        most_of_part = exercise.points * weight / total
        points_of_part = 0.0 if finding else most_of_part
        cells = escape(part), f"{points_of_part:g} of {most_of_part:g}", escape(finding) or "right"
        rows += row.format(*cells)
    head = row.format("<b>part</b>", "<b>points</b>", "<b>finding</b>")
    html = f"<p>{exercise.name}: {points:g} of {exercise.points} points.</p><table>{head}{rows}</table>"
    return new_output(
        "execute_result", {"text/plain": f"{points:g}", "text/html": html}, execution_count=None
    )


def fit_points(check: Any) -> None:
    """Scale the points for parts of an answer to those of the check cell, if a course has changed these."""
    marks, outcome = check.metadata["nbgrader"], check.outputs[0]
    if outcome.output_type == "execute_result":
        exercise = catalogue.find(marks["grade_id"].removeprefix(copies.CHECK_ID))
        points = float(outcome.data["text/plain"]) * marks["points"] / exercise.points
        outcome.data["text/plain"] = f"{points:g}"


def _error(kind: str, words: str) -> Any:
    return new_output("error", ename=kind, evalue=words, traceback=[words])


class FeedbackPage(HTMLExporter):
    """nbgrader's page of feedback, whose list of points names exercises and questions.

    nbgrader calls each of them "Test cell", "Coding free-response" or "Written response", and links to it by
    its id.
    """

    def from_notebook_node(self, nb: Any, resources: Any = None, **options: Any) -> tuple[Any, Any]:
        html, resources = super().from_notebook_node(nb, resources, **options)
        return ITEM.sub(lambda match: f"{match[1]}{title_of(match[2])}</a>", html), resources


ITEM = re.compile(r'(<li><a href="#([\w-]+)">)(?:Test cell|Coding free-response|Written response)</a>')


def title_of(grade_id: str) -> str:
    """Return the name of an exercise or a question as a student knows it, in HTML."""
    name = grade_id.removeprefix(copies.CHECK_ID)
    if grade_id.startswith(questions.QUESTION_ID):
        return f"Question <code>{escape(grade_id.removeprefix(questions.QUESTION_ID))}</code>"
    if grade_id.startswith(sixth_report.ROW_ID):
        return escape(grade_id.removeprefix(sixth_report.ROW_ID)).capitalize()
    try:
        return f"{escape(catalogue.find(name).heading.title)} (<code>{escape(name)}</code>)"
    except (catalogue.UnknownExercise, HeadingError):
        return f"<code>{escape(grade_id)}</code>"


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


def set_aside(assignment: str, student: str, notebooks: list[str]) -> None:
    """Move what nbgrader must not read from a student's submitted folder to the course's folder REFUSED.

    That is what is no plain file, another student's file, a notebook that is too large, and a file of a time
    that is none. nbgrader calls this before it copies a submission. Files may have come there in other ways
    than by `collect`.
    """
    for folder in {Path(notebook).parent for notebook in notebooks}:
        try:
            set_aside_from(folder, [Path(notebook) for notebook in notebooks])
        except OSError as error:  # nbgrader would go on, and follow the links that are left
            _move_to_refused(folder, f"a folder that cannot be read ({error.strerror})")


def set_aside_from(folder: Path, notebooks: list[Path]) -> None:
    """Move what nbgrader must not read from a folder to REFUSED."""
    others = files_of_others(folder.parents[1])  # before anything here changes
    for path in list(not_plain(folder)):
        if os.path.lexists(path):  # its folder may have been moved
            _move_to_refused(path, "a link, no file, or too deep")
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        if path in others:
            _move_to_refused(path, f"the same file as {printable(str(others[path]))}")
        elif not can_be_stored(path):
            _move_to_refused(path, "a file whose name is no text")
    if len(files) > MOST_FILES:
        leave_the_notebook_alone(folder)
    refuse_what_is_no_time(folder / TIME)
    for path in notebooks:
        if path.is_file() and path.stat().st_size > MOST_NOTEBOOK_BYTES:
            _move_to_refused(path, f"larger than {MOST_NOTEBOOK_BYTES >> 20} MB")
        elif path.is_file() and path.stat().st_nlink > 1:
            # It is graded: a copy of the whole course by hard links, as a backup makes, is no fault.
            get_logger().warning(f"{printable(str(path))} has a second name: look where it has come from")


def can_be_stored(path: Path) -> bool:
    """Return whether a path is text that nbgrader's database can hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def leave_the_notebook_alone(folder: Path) -> None:
    """Move all of a submission to REFUSED, besides the notebook and its time."""
    refused = _move_to_refused(folder, f"a folder of more than {MOST_FILES} files, besides the notebook")
    folder.mkdir()
    for name in (f"{folder.name}.ipynb", TIME):
        if (refused / name).is_file():
            (refused / name).rename(folder / name)


@cache
def files_of_others(submitted: Path) -> dict[Path, Path]:
    """Return the path at which another student has handed in the same file, of each that must be refused.

    What this says stays the same while one command of nbgrader runs.
    """
    return {
        path: owners_path
        for owners_path, *others in shared_files(submitted).values()
        for path in others
        if path.relative_to(submitted).parts[0] != owners_path.relative_to(submitted).parts[0]
    }


def refuse_what_is_no_time(timestamp: Path) -> None:
    """Move a file of the time of a submission to REFUSED if nbgrader cannot read it."""
    if os.path.lexists(timestamp) and not is_time(timestamp):
        folder = timestamp.parent
        _move_to_refused(folder if folder.is_symlink() else timestamp, "no time")


def is_time(timestamp: Path) -> bool:
    """Return whether nbgrader can read a file of the time of a submission, or it is empty."""
    about = timestamp.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_TIMESTAMP_BYTES:
        return False
    try:
        text = timestamp.read_text().strip()
        return not text or parse_utc(text) is not None
    except (ValueError, ArithmeticError, TypeError, LookupError, OSError):
        return False


def _move_to_refused(path: Path, reason: str) -> Path:
    """Move a path to REFUSED, say so, and return its new place."""
    name = os.fsdecode(os.fsencode(path.name)[-200:])  # a file's name has at most 255 bytes
    place = Path(REFUSED, f"{secrets.token_hex(4)}-{name}")
    place.parent.mkdir(exist_ok=True)
    shown = printable(str(path))
    try:
        allow_to_move(path)
        path.rename(place)
    except OSError as error:
        # nbgrader would catch another exception, go on, and follow the link.
        raise SystemExit(f"{shown} is {reason}, and cannot be moved: {error.strerror}") from None
    get_logger().error(f"{shown} is {reason}: it is now {printable(str(place))}, and is not graded")
    return place


def allow_to_move(path: Path) -> None:
    """Give the owner the rights that moving a path takes: a student's may have been copied with the files."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        path.parent.chmod(0o700)
    if path.is_dir() and not path.is_symlink() and not os.access(path, os.W_OK):
        path.chmod(0o700)


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
    KeepAnswers,
    preprocessors.DeduplicateIds,
    preprocessors.OverwriteKernelspec,
    preprocessors.OverwriteCells,
    preprocessors.CheckCellMetadata,
]
AUTOGRADE = [
    CheckExercises,
    AddRubrics,
    preprocessors.LimitOutput,
    preprocessors.SaveAutoGrades,
    preprocessors.AssignLatePenalties,
    preprocessors.CheckCellMetadata,
]
