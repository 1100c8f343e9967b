"""A whole round with nbgrader: release, submit, grade, return the findings."""

from __future__ import annotations

import copy
import csv
import inspect
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from labkit.cli.course import copies
from labkit.cli.course.plain_files import NotPlain, copy_plain
from labkit.exercises import catalogue
from labkit.exercises.exercise import Verdict
from tests.conftest import run_python

pytestmark = pytest.mark.grading

ROOT = Path(__file__).parents[2]
ASSIGNMENT = "03_sharding"
EXERCISES = {
    name: exercise for name, exercise in catalogue.exercises().items() if exercise.notebook == ASSIGNMENT[:2]
}
PURE = next(name for name, exercise in EXERCISES.items() if not exercise.on_ranks)
ON_RANKS = next(name for name, exercise in EXERCISES.items() if exercise.on_ranks)
LIMIT_S = 600  # for one command; grading runs some twenty jobs

FROM_A_PLATFORM = "ada"  # submits through a learning platform's archive

# nbgrader starts `alembic` by its name.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def function(name: str, *body: str) -> str:
    """Return the text of a cell that defines an exercise's function with its arguments and this body."""
    head = EXERCISES[name].text.partition(":\n")[0]
    return "\n".join([f"{head}:", *(f"    {line}" for line in body)])


def write(notebook: Any, name: str, text: str) -> None:
    """Write a text into the cell of an exercise, as a student does."""
    cell = next(pair.stub for pair in copies.pairs(notebook) if pair.name == name)
    cell.source = copies.without_magic(cell.source)[0] + text


def everything_right(notebook: Any) -> None:
    copies.solve(notebook, EXERCISES)


def in_a_copy_without_marks(notebook: Any) -> None:
    """The student has worked in the copy that `make lab` opens, which nbgrader has not made."""
    copies.solve(notebook, EXERCISES)
    for cell in notebook.cells:
        cell.metadata.pop("nbgrader", None)


def nothing(notebook: Any) -> None:
    pass


def wrong(notebook: Any) -> None:
    write(notebook, PURE, function(PURE, "return 0"))


def not_python(notebook: Any) -> None:
    write(notebook, PURE, function(PURE, "return ("))


def process_ends(notebook: Any) -> None:
    """One answer ends the process that runs it; the answer to another exercise is right."""
    write(notebook, PURE, f"import os\nos._exit(0)\n\n\n{EXERCISES[PURE].text}")
    write(notebook, ON_RANKS, EXERCISES[ON_RANKS].text)


def patched_checks(notebook: Any) -> None:
    """The student's cells replace the check, and the check cells are changed; nothing is solved."""
    patch = "import labkit.exercises\n\n\ndef check(f):\n    return f\n\n\nlabkit.exercises.check = check"
    notebook.cells.insert(1, new_code_cell(patch))
    notebook.cells.insert(1, new_code_cell(f"%%px\n{patch}"))
    for pair in copies.pairs(notebook):
        pair.check.source = "pass"
        pair.check.metadata["tags"] = []
        pair.check.metadata["nbgrader"]["points"] = 100


def deleted_cells(notebook: Any) -> None:
    """The cells of one exercise are gone, and its solution stands in a new cell."""
    stub, check = next((pair.stub, pair.check) for pair in copies.pairs(notebook) if pair.name == PURE)
    place = notebook.cells.index(stub)
    notebook.cells = [cell for cell in notebook.cells if cell is not stub and cell is not check]
    notebook.cells.insert(place, new_code_cell(EXERCISES[PURE].text))


def a_check_copied(notebook: Any) -> None:
    """The student has copied a check cell and pasted it twice, above and below: each has nbgrader's marks."""
    write(notebook, PURE, EXERCISES[PURE].text)
    check = next(pair.check for pair in copies.pairs(notebook) if pair.name == PURE)
    for place in (0, len(notebook.cells)):
        notebook.cells.insert(place, new_code_cell(check.source, metadata=copy.deepcopy(check.metadata)))


def marks_of_no_version(notebook: Any) -> None:
    write(notebook, PURE, EXERCISES[PURE].text)
    for number, cell in enumerate(marked_cells(notebook)):
        cell.metadata["nbgrader"]["schema_version"] = (0, 99, -1, "x")[number % 4]


def marks_of_all_kinds(notebook: Any) -> None:
    """Marks that are no marks, unknown ids, and an answer that claims to be a check."""
    write(notebook, PURE, EXERCISES[PURE].text)
    kinds = ["x", [], None, 5, {}, {"grade_id": ""}, {"grade_id": "unknown", "grade": True, "points": 50}]
    for kind in kinds:
        notebook.cells.insert(0, new_code_cell("1", metadata={"nbgrader": kind}))
    stub = next(pair.stub for pair in copies.pairs(notebook) if pair.name == PURE)
    stub.metadata["nbgrader"] |= {"grade": True, "points": 1000, "grade_id": ["a"]}


def ids_twice(notebook: Any) -> None:
    write(notebook, PURE, EXERCISES[PURE].text)
    for cell in marked_cells(notebook):
        cell.metadata["nbgrader"]["grade_id"] = f"{copies.CHECK_ID}{PURE}"


def a_helper_in_another_cell(notebook: Any) -> None:
    """The answer calls a function of another cell, as `check` in the notebook allows."""
    stub = next(pair.stub for pair in copies.pairs(notebook) if pair.name == PURE)
    helper = EXERCISES[PURE].text.replace(f"def {PURE}(", "def helper(")
    notebook.cells.insert(notebook.cells.index(stub), new_code_cell(helper))
    parameters = ", ".join(inspect.signature(EXERCISES[PURE].reference).parameters)
    write(notebook, PURE, function(PURE, f"return helper({parameters})"))


def marked_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if "nbgrader" in cell.metadata]


def total(*names: str) -> int:
    return sum(EXERCISES[name].points for name in names)


# Each student's work, the points, and words of the feedback.
STUDENTS: list[tuple[Callable[[Any], None], int, str]] = [
    (everything_right, total(*EXERCISES), f"{PURE}: correct ("),
    (in_a_copy_without_marks, total(*EXERCISES), f"{PURE}: correct ("),
    (nothing, 0, f"{PURE}: not written."),
    (wrong, 0, f"{PURE}: not correct: "),
    (not_python, 0, f"{PURE}: not correct: SyntaxError"),
    (process_ends, total(ON_RANKS), f"{PURE}: not correct: "),
    (patched_checks, 0, f"{PURE}: not written."),
    (deleted_cells, total(PURE), f"{PURE}: correct ("),
    (a_check_copied, total(PURE), f"{PURE}: correct ("),
    (marks_of_no_version, total(PURE), f"{PURE}: correct ("),
    (marks_of_all_kinds, total(PURE), f"{PURE}: correct ("),
    (ids_twice, total(PURE), f"{PURE}: correct ("),
    (a_helper_in_another_cell, total(PURE), f"{PURE}: correct ("),
]
LINKED = "linked"  # a student whose folder holds a link


def secret(course: Path) -> Path:
    """Return a file that no student may see."""
    path = course.parent / "secret"
    path.write_text("c0ffee5ec7e7")
    return path


def nbgrader(course: Path, *arguments: str) -> str:
    done = run_python("-m", "nbgrader", *arguments, cwd=course, env=ENVIRONMENT, timeout=LIMIT_S)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a course in which all students have submitted, and are graded."""
    folder = tmp_path_factory.mktemp("grading") / "course"
    run_python("-m", "labkit", "release", "--nbgrader", folder, cwd=ROOT, timeout=LIMIT_S)
    nbgrader(folder, "generate_assignment", ASSIGNMENT)
    for work, _, _ in STUDENTS:
        notebook = nbformat.read(folder / f"release/{ASSIGNMENT}/{ASSIGNMENT}.ipynb", as_version=4)
        work(notebook)
        place = folder / "submitted" / work.__name__ / ASSIGNMENT
        place.mkdir(parents=True)
        nbformat.write(notebook, place / f"{ASSIGNMENT}.ipynb")
    place = folder / "submitted" / LINKED / ASSIGNMENT
    place.mkdir(parents=True)
    shutil.copy(folder / f"release/{ASSIGNMENT}/{ASSIGNMENT}.ipynb", place)
    (place / "data.txt").symlink_to(secret(folder))
    archive = folder / "downloaded" / ASSIGNMENT / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "all.zip", "w") as file:
        released = folder / f"release/{ASSIGNMENT}/{ASSIGNMENT}.ipynb"
        file.write(released, f"{FROM_A_PLATFORM}_{ASSIGNMENT}.ipynb")
    nbgrader(folder, "zip_collect", ASSIGNMENT)
    (folder / "log").write_text(nbgrader(folder, "autograde", ASSIGNMENT))
    nbgrader(folder, "generate_feedback", ASSIGNMENT)
    nbgrader(folder, "export")
    return folder


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(
    ("student", "points", "words"), [pytest.param(work.__name__, *rest) for work, *rest in STUDENTS]
)
def test_a_student_gets_points_and_findings(course: Path, student: str, points: int, words: str) -> None:
    with (course / "grades.csv").open() as file:
        grades = {row["student_id"]: row for row in csv.DictReader(file)}
    assert float(grades[student]["max_score"]) == total(*EXERCISES)
    assert float(grades[student]["score"]) == points
    assert words in (course / f"feedback/{student}/{ASSIGNMENT}/{ASSIGNMENT}.html").read_text()


def test_a_file_from_a_learning_platform_is_collected_and_graded(course: Path) -> None:
    with (course / "grades.csv").open() as file:
        assert FROM_A_PLATFORM in [row["student_id"] for row in csv.DictReader(file)]


def test_marks_that_are_repaired_are_named(course: Path) -> None:
    log = (course / "log").read_text()
    for work in (a_check_copied, marks_of_no_version, marks_of_all_kinds, ids_twice):
        assert f"{work.__name__}: marks of nbgrader" in log
    assert f"{wrong.__name__}: marks of nbgrader" not in log


def test_a_link_in_a_submission_is_set_aside(course: Path) -> None:
    assert f"submitted/{LINKED}/{ASSIGNMENT}/data.txt is a link" in (course / "log").read_text()
    assert not list((course / "autograded" / LINKED).rglob("data.txt"))
    assert [path.is_symlink() for path in (course / "refused").iterdir()] == [True]


@pytest.fixture
def exchange(course: Path, tmp_path: Path) -> Path:
    """Return the inbound folder of an exchange, and let the course use it."""
    settings = f"\nc.Exchange.root = {str(tmp_path)!r}\nc.ExchangeCollect.check_owner = False\n"
    with (course / "nbgrader_config.py").open("a") as file:
        file.write(settings)
    inbound = tmp_path / "allreduce-lab/inbound"
    inbound.mkdir(parents=True)
    tmp_path.chmod(0o777)
    return inbound


def submit(exchange: Path, student: str) -> Path:
    """Return the folder of a submission in the exchange."""
    folder = exchange / f"{student}+{ASSIGNMENT}+2026-01-01 12:00:00 UTC"
    folder.mkdir()
    (folder / f"{ASSIGNMENT}.ipynb").write_text("{}")
    return folder


def test_collecting_refuses_what_is_no_plain_file(course: Path, exchange: Path) -> None:
    """A link in a student's folder would put any file of the instructor's among the submitted ones."""
    hidden = secret(course)
    submit(exchange, "plain")
    (submit(exchange, "link") / "a.txt").symlink_to(hidden)
    (submit(exchange, "folder") / "a").symlink_to(hidden.parent)
    os.link(hidden, submit(exchange, "second") / "a.txt")
    os.mkfifo(submit(exchange, "pipe") / "a.txt")
    (exchange / f"whole+{ASSIGNMENT}+2026-01-01 12:00:00 UTC").symlink_to(submit(exchange, "other"))
    log = nbgrader(course, "collect", ASSIGNMENT)
    collected = {path.parent.name for path in (course / "submitted").glob(f"*/{ASSIGNMENT}")}
    assert {"plain", "other"} <= collected
    assert not {"link", "folder", "second", "pipe", "whole"} & collected
    for student in ("link", "folder", "pipe", "whole"):
        assert f"{student}: not collected" in log
    assert "has a second name" in log
    texts = [path.read_text() for path in (course / "submitted").rglob("*") if path.is_file()]
    assert hidden.read_text() not in texts


def test_a_file_that_is_exchanged_while_it_is_collected_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("mine")
    real_walk = os.fwalk

    def walk(*arguments: Any, **options: Any) -> Any:
        for entry in real_walk(*arguments, **options):
            (source / "a.txt").unlink()
            (source / "a.txt").symlink_to("/etc/hostname")
            yield entry

    monkeypatch.setattr(os, "fwalk", walk)
    with pytest.raises(NotPlain, match="is a link"):
        copy_plain(source, tmp_path / "target", lambda folder, names: [])
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_if_the_check_itself_fails_there_is_no_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    """No points, also not 0: nbgrader reports the error that is raised here."""
    from labkit.cli.course import grading  # noqa: PLC0415  (needs nbgrader)

    failed = Verdict(False, "no mpiexec", check_failed=True)
    monkeypatch.setattr(grading, "grade_text", lambda exercise, text, sandboxed: failed)
    with pytest.raises(grading.NotGraded, match="no mpiexec"):
        grading.output(PURE, EXERCISES[PURE].text)
    with pytest.raises(LookupError):
        grading.output("no_such_exercise", "def no_such_exercise(): return 1")
