"""A whole round with nbgrader: release, submit, grade, return the findings."""

from __future__ import annotations

import copy
import csv
import inspect
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from labkit.checks.exercise import ORIGINALS, Verdict
from labkit.cli.course import copies, questions
from labkit.cli.course.plain_files import NotPlain, copy_plain
from labkit.exercises import catalogue
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


def ids_exchanged(notebook: Any) -> None:
    """The answer claims to be a check: nbgrader would write the check's text over it."""
    write(notebook, PURE, EXERCISES[PURE].text)
    cells = marked_cells(notebook)
    ids = [cell.metadata["nbgrader"]["grade_id"] for cell in cells]
    for cell, grade_id in zip(cells, [*ids[1:], ids[0]], strict=True):
        cell.metadata["nbgrader"]["grade_id"] = grade_id


def cells_reversed(notebook: Any) -> None:
    write(notebook, PURE, EXERCISES[PURE].text)
    notebook.cells.reverse()


def an_error_with_codes(notebook: Any) -> None:
    """The error's text holds codes that a terminal obeys, and what no file can hold."""
    write(notebook, PURE, function(PURE, r"raise ValueError('\x1b[2J\ud800 end')"))


def a_cell_without_end(notebook: Any) -> None:
    """Python would need gigabytes to read the cell's code."""
    write(notebook, PURE, function(PURE, f"return [{'0,' * 60_000}]"))
    write(notebook, ON_RANKS, EXERCISES[ON_RANKS].text)


def half_a_character(notebook: Any) -> None:
    """A cell has half of an emoji: no file can hold it, and nbgrader would not grade the notebook."""
    write(notebook, PURE, EXERCISES[PURE].text)
    notebook.cells.insert(0, new_code_cell("# \ud83d", metadata={"name": "\ud83d"}))


def no_text(notebook: Any) -> None:
    """A cell's source is no text."""
    write(notebook, PURE, EXERCISES[PURE].text)
    notebook.cells.insert(0, new_code_cell())
    notebook.cells[0].source = 7


def a_helper_in_another_cell(notebook: Any) -> None:
    """The answer calls a function of another cell, as `check` in the notebook allows."""
    stub = next(pair.stub for pair in copies.pairs(notebook) if pair.name == PURE)
    helper = EXERCISES[PURE].text.replace(f"def {PURE}(", "def helper(")
    notebook.cells.insert(notebook.cells.index(stub), new_code_cell(helper))
    parameters = ", ".join(inspect.signature(EXERCISES[PURE].reference).parameters)
    write(notebook, PURE, function(PURE, f"return helper({parameters})"))


def marked_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if "nbgrader" in cell.metadata]


def questions_answered(notebook: Any) -> None:
    """One question is answered twice, as its output shows; a cell with hostile output; the other is gone."""
    first, second = questions.questions(notebook)
    first.cell.source = f'answer("{first.names[0]}", """All blocks hold one label, so shuffle first.""")'
    first.cell.outputs = [
        new_output("stream", text="Your first answer was: none\n"),
        new_output("display_data", {"text/html": "<script>alert('hostile')</script>"}),
    ]
    notebook.cells.remove(second.cell)


def questions_in_a_copy_without_marks(notebook: Any) -> None:
    """The student has worked in the copy that `make lab` opens, and answered in a new cell, too."""
    first, _ = questions.questions(notebook)
    notebook.cells.append(
        new_code_cell(f'answer("{first.names[0]}", "One label in each block, in a new cell.")')
    )
    for cell in notebook.cells:
        cell.metadata.pop("nbgrader", None)


def total(*names: str) -> int:
    return sum(EXERCISES[name].points for name in names)


OF_QUESTIONS = sum(
    question.points for question in questions.questions(nbformat.read(ORIGINALS / f"{ASSIGNMENT}.ipynb", 4))
)
MODEL = catalogue.questions()["03-blocks"]


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
    (ids_exchanged, total(PURE), f"{PURE}: correct ("),
    (cells_reversed, total(PURE), f"{PURE}: correct ("),
    (an_error_with_codes, 0, "ValueError: \\x1b[2J\\ud800 end"),
    (a_cell_without_end, total(ON_RANKS), "This cell had 120,"),
    (half_a_character, total(PURE), "# ?"),
    (no_text, total(PURE), "This cell held no text"),
    (a_helper_in_another_cell, total(PURE), f"{PURE}: correct ("),
    (questions_answered, 0, "Your first answer was: none"),
    (questions_in_a_copy_without_marks, 0, "One label in each block, in a new cell."),
]
HUGE, MANY = "huge", "many"  # students whose notebooks are too large, or have too many cells
LINKED = "linked"  # a student whose folder holds a link
THIEF = "thief"  # a student whose notebook is a hard link to that of another
RIGHT_NOTEBOOK = f"submitted/{everything_right.__name__}/{ASSIGNMENT}/{ASSIGNMENT}.ipynb"


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
        # nbformat would write half of a character as it is.
        (place / f"{ASSIGNMENT}.ipynb").write_text(json.dumps(json.loads(nbformat.writes(notebook))))
    place = folder / "submitted" / LINKED / ASSIGNMENT
    place.mkdir(parents=True)
    shutil.copy(folder / f"release/{ASSIGNMENT}/{ASSIGNMENT}.ipynb", place)
    (place / "data.txt").symlink_to(secret(folder))
    os.link(place / f"{ASSIGNMENT}.ipynb", folder / "second.ipynb")
    (folder / "submitted" / wrong.__name__ / ASSIGNMENT / "timestamp.txt").write_text("1 " * 5_000_000)
    (folder / "submitted" / deleted_cells.__name__ / ASSIGNMENT / "timestamp.txt").write_text("2026-13-45")
    place = folder / "submitted" / THIEF / ASSIGNMENT
    place.mkdir(parents=True)
    os.link(folder / RIGHT_NOTEBOOK, place / f"{ASSIGNMENT}.ipynb")
    for student in (HUGE, MANY):
        place = folder / "submitted" / student / ASSIGNMENT
        place.mkdir(parents=True)
        notebook = nbformat.read(folder / f"release/{ASSIGNMENT}/{ASSIGNMENT}.ipynb", as_version=4)
        if student == HUGE:
            notebook.metadata["text"] = "x" * (51 << 20)
        else:
            notebook.cells += [new_code_cell("1") for _ in range(5000)]
        nbformat.write(notebook, place / f"{ASSIGNMENT}.ipynb")
    archive = folder / "downloaded" / ASSIGNMENT / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "all.zip", "w") as file:
        released = folder / f"release/{ASSIGNMENT}/{ASSIGNMENT}.ipynb"
        file.write(released, f"{FROM_A_PLATFORM}_{ASSIGNMENT}.ipynb")
    # Each command sets bad times aside before anything else, so this one names them.
    collected = nbgrader(folder, "zip_collect", ASSIGNMENT)
    # The exit status says that two students were left out.
    done = run_python(
        "-m", "nbgrader", "autograde", ASSIGNMENT, cwd=folder, env=ENVIRONMENT, timeout=LIMIT_S, code=1
    )
    (folder / "log").write_text(collected + done.stdout + done.stderr)
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
    assert float(grades[student]["max_score"]) == total(*EXERCISES) + OF_QUESTIONS
    assert float(grades[student]["score"]) == points
    assert words in (course / f"feedback/{student}/{ASSIGNMENT}/{ASSIGNMENT}.html").read_text()


def test_an_answered_question_waits_for_a_persons_points_beside_rubric_and_model_answer(course: Path) -> None:
    from nbgrader.api import Gradebook  # noqa: PLC0415  (the extra `grading`)

    open_grades = {}
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        for work in (questions_answered, questions_in_a_copy_without_marks, nothing, everything_right):
            submitted = gradebook.find_submission_notebook(ASSIGNMENT, ASSIGNMENT, work.__name__)
            open_grades[work] = {grade.name for grade in submitted.grades if grade.needs_manual_grade}
    assert open_grades == {
        questions_answered: {"question-03-blocks"},
        questions_in_a_copy_without_marks: {"question-03-blocks"},
        nothing: set(),
        everything_right: set(),
    }
    path = course / f"autograded/{questions_answered.__name__}/{ASSIGNMENT}/{ASSIGNMENT}.ipynb"
    graded = nbformat.read(path, as_version=4).cells
    (answered,) = [
        cell for cell in graded if cell.metadata.get("nbgrader", {}).get("grade_id") == "question-03-blocks"
    ]
    (output,) = answered.outputs
    assert output.text == "Your first answer was: none\n"
    below = graded[graded.index(answered) + 1].source
    assert "Rubric and model answer" in below and MODEL in below and questions.RUBRIC in below
    released = (course / f"release/{ASSIGNMENT}/{ASSIGNMENT}.ipynb").read_text()
    assert "Rubric and model answer" not in released and MODEL[:40] not in released


def test_a_file_from_a_learning_platform_is_collected_and_graded(course: Path) -> None:
    with (course / "grades.csv").open() as file:
        assert FROM_A_PLATFORM in [row["student_id"] for row in csv.DictReader(file)]


def test_marks_that_are_repaired_are_named(course: Path) -> None:
    log = (course / "log").read_text()
    for work in (a_check_copied, marks_of_no_version, marks_of_all_kinds, ids_twice):
        assert log.count(f"{work.__name__}: marks of nbgrader") == 1
    assert f"{wrong.__name__}: marks of nbgrader" not in log


def test_a_link_in_a_submission_is_set_aside(course: Path) -> None:
    assert f"submitted/{LINKED}/{ASSIGNMENT}/data.txt is a link" in (course / "log").read_text()
    assert not list((course / "autograded" / LINKED).rglob("data.txt"))
    assert [path.is_symlink() for path in (course / "refused").glob("*-data.txt")] == [True]


def test_a_notebook_that_is_too_large_is_left_out_and_its_student_named(course: Path) -> None:
    log = (course / "log").read_text()
    assert f"submitted/{HUGE}/{ASSIGNMENT}/{ASSIGNMENT}.ipynb is larger than 50 MB" in log
    assert f"submitted/{LINKED}/{ASSIGNMENT}/{ASSIGNMENT}.ipynb has a second name" in log
    for work in (wrong, deleted_cells):
        assert f"submitted/{work.__name__}/{ASSIGNMENT}/timestamp.txt is no time" in log
    assert f"{MANY}: the notebook has more than 5,000 cells" in log
    assert not list((course / "autograded" / HUGE).rglob("*.ipynb"))
    assert not list((course / "autograded" / MANY).rglob("*.ipynb"))


def test_a_notebook_that_is_another_students_gets_no_points(course: Path) -> None:
    with (course / "grades.csv").open() as file:
        grades = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert grades[THIEF] == 0
    log = (course / "log").read_text()
    assert f"submitted/{THIEF}/{ASSIGNMENT}/{ASSIGNMENT}.ipynb is the same file as " in log
    assert f"{RIGHT_NOTEBOOK}: it is now refused/" in log


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


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of submissions of a course, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "submitted"


def hand_in(submitted: Path, student: str) -> Path:
    """Return the notebook that a student has handed in."""
    notebook = submitted / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    notebook.parent.mkdir(parents=True)
    notebook.write_text("{}")
    return notebook


def set_aside(*notebooks: Path) -> None:
    """Do what nbgrader does before it copies the submissions."""
    from labkit.cli.course import grading  # noqa: PLC0415  (needs nbgrader)

    grading.files_of_others.cache_clear()
    for notebook in notebooks:
        grading.set_aside(ASSIGNMENT, "*", [str(notebook)])


def test_a_folder_too_deep_for_a_path_hides_no_link(
    submitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If what nbgrader calls before has failed, it goes on, and follows the link."""
    notebook = hand_in(submitted, "ada")
    (notebook.parent / ("n" * 255)).symlink_to("/etc/hostname")
    monkeypatch.chdir(notebook.parent)
    for _ in range(400):
        os.mkdir("deep-folder")
        os.chdir("deep-folder")
    monkeypatch.chdir(tmp_path)
    set_aside(notebook)
    assert list(notebook.parent.iterdir()) == [notebook]


def test_a_name_that_is_no_text_is_set_aside(submitted: Path) -> None:
    """With a notebook of such a name, nbgrader would not grade the student's others."""
    notebook = hand_in(submitted, "ada")
    (notebook.parent / os.fsdecode(b"\xff\xfe.ipynb")).write_text("{}")
    set_aside(notebook)
    assert list(notebook.parent.iterdir()) == [notebook]


def test_only_the_notebook_of_a_folder_with_many_files_is_graded(submitted: Path) -> None:
    """The time that nbgrader needs grows with the square of the number of files."""
    notebook = hand_in(submitted, "ada")
    time = notebook.with_name("timestamp.txt")
    time.write_text("2026-01-01 12:00:00 UTC")
    for number in range(600):
        (notebook.parent / str(number)).touch()
    set_aside(notebook)
    assert sorted(notebook.parent.iterdir()) == [notebook, time]


def test_a_file_that_two_students_share_is_that_of_the_first(submitted: Path) -> None:
    right = hand_in(submitted, "zoe")
    second = hand_in(submitted, "ada")
    second.unlink()
    os.link(right, second)
    set_aside(second, right)
    assert right.is_file()
    assert not second.exists()


def test_a_file_that_two_students_share_is_that_of_the_account_that_owns_it(submitted: Path) -> None:
    first = hand_in(submitted, "zoe")
    right = hand_in(submitted, first.owner())
    right.unlink()
    os.link(first, right)
    set_aside(first, right)
    assert right.is_file()
    assert not first.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"the day before yesterday",
        b"-0001-13-45 99:99:99 +99:99",
        b"99999-01-01 00:00:00 UTC",
        b"\xff\xfe\x00\x80",
        b"2" * 200,
    ],
)
def test_a_time_that_is_none_is_set_aside(submitted: Path, text: bytes) -> None:
    notebook = hand_in(submitted, "ada")
    notebook.with_name("timestamp.txt").write_bytes(text)
    set_aside(notebook)
    assert list(notebook.parent.iterdir()) == [notebook]


@pytest.mark.parametrize("text", ["", "2026-01-01 12:00:00 UTC", "2026-01-01 12:00:00 Europe/Berlin"])
def test_a_time_stays(submitted: Path, text: str) -> None:
    notebook = hand_in(submitted, "ada")
    time = notebook.with_name("timestamp.txt")
    time.write_text(text)
    set_aside(notebook)
    assert time.is_file()


def test_a_time_that_is_none_is_set_aside_before_nbgrader_looks(submitted: Path) -> None:
    """Of a submission that it has graded before, nbgrader reads the time first, and waits for the pipe."""
    from traitlets.config import Config  # noqa: PLC0415  (needs nbgrader)

    from labkit.cli.course import grading  # noqa: PLC0415

    time = hand_in(submitted, "ada").with_name("timestamp.txt")
    os.mkfifo(time)
    grading.configure(Config())
    assert not time.exists()


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


def test_points_for_parts_are_those_that_the_course_gives() -> None:
    """An instructor may have changed the points of a check in the sources of the course."""
    from labkit.cli.course import grading  # noqa: PLC0415  (needs nbgrader)

    exercise = catalogue.find("job_script")
    parts = {**dict.fromkeys(exercise.parts, ""), "signal": "<none>"}
    outcome = grading.partial_output(exercise, Verdict(False, "<none>", parts=parts))
    assert "&lt;none&gt;" in outcome.data["text/html"] and not grading.is_correct(outcome)
    check = new_code_cell("", metadata={"nbgrader": copies.check_marks("check-job_script", 18)})
    check.outputs = [outcome]
    grading.fit_points(check)
    assert outcome.data["text/plain"] == "12"
