"""All points of a class are in nbgrader's gradebook: parts of an exercise, the sixth report, contests."""

from __future__ import annotations

import csv
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit.cli.course import contests, copies, sixth_report
from labkit.exercises import catalogue, collect, on_call, own_report, record
from labkit.exercises.nb09 import job_script
from tests.cli.test_platform_tables import canvas_imports
from tests.exercises.test_allreduce_contest import RING
from tests.exercises.test_own_report import BEGIN, report, text_of
from tests.grading.course import Course, run_module

pytestmark = [pytest.mark.grading, pytest.mark.timeout(1200)]

BEYOND, REPORT = "09_beyond_one_machine", sixth_report.NAME
SEED = 830
ADA, ALAN, EMMY = "lovelaceada_1001", "turingalan_1002", "noetheremmy_1003"
NUMBERS = {ADA: 1001, ALAN: 1002, EMMY: 1003}
NO_SIGNAL = job_script().replace("trap 'kill -USR1 $ranks' USR1", "trap 'true' USR1")
ROWS = {"question": 1.0, "prediction": 1.5, "result": 2.0, "conclusions": 1.0, "alternatives": 2.0, "page": 1}


def reports(folder: Path) -> dict[str, Path]:
    """Return what Ada and Alan hand in; Alan has invented a number, and his prediction is younger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(record.FILE, str(folder / "progress.json"))
        collect(folder)
    report("begin", folder / "ada", *BEGIN)
    report("run", folder / "ada", "--program", folder / "my_ddp.py", "-n", 2, "--rounds", 5)
    (folder / "ada" / own_report.TEXT).write_text(text_of(folder / "ada"))
    report("check", folder / "ada")
    shutil.copytree(folder / "ada", folder / "alan")
    (folder / "alan" / own_report.PREDICTION).unlink()
    report("begin", folder / "alan", *BEGIN)
    invented = text_of(folder / "alan").replace(
        "Another program", "A step of 987.65 ms shows another program"
    )
    (folder / "alan" / own_report.TEXT).write_text(invented)
    report("check", folder / "alan", code=1)
    return {
        ADA: folder / "ada" / own_report.NOTEBOOK,
        ALAN: own_report.notebook(folder / "alan"),  # by hand: `check` has not written it
    }


def diagnosis(cause: str, rank: int | None) -> dict[str, Any]:
    """Return the record of a student who has filed this without a measurement."""
    tries = [[cause, rank, "none", "pings", 1.0, "I guess"]]
    return {"exercises": {f"11-on-call-{SEED}": {"ranks": 4, "measured": [], "tries": tries}}}


def canvas_table(path: Path) -> None:
    lines = [f"Student,ID,SIS User ID,SIS Login ID,Section,{BEYOND} (91),{REPORT} (92),incidents (93)"]
    lines += ["    Points Possible,,,,,21,10,10"]
    lines += [f'"{student}",{number},,login{number},A,,,' for student, number in NUMBERS.items()]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Return a course whose three students have handed in what there is, and were graded by nbgrader."""
    made = Course(tmp_path_factory.mktemp("points") / "course")
    handed_in = reports(tmp_path_factory.mktemp("reports"))
    beyond, rubric = made.released(BEYOND), made.released(REPORT)
    for pair in copies.pairs(beyond):
        if pair.name == "job_script":
            pair.stub.source = f"def job_script():\n    return {NO_SIGNAL!r}"
    made.hand_in(ADA, BEYOND, beyond)
    with zipfile.ZipFile(made.folder / "canvas.zip", "w") as archive:
        for student, path in handed_in.items():
            name, number = student.split("_")
            archive.write(path, f"{name}_{number}_{int(number) + 5000}_{REPORT}-1.ipynb")
    run_module("labkit", "course", "submissions", "canvas.zip", cwd=made.folder)
    made.hand_in(EMMY, REPORT, rubric)  # as it was handed out
    for assignment in (BEYOND, REPORT):
        made.grade(assignment)
    return made


def book(course: Course) -> Any:
    from nbgrader.api import Gradebook  # noqa: PLC0415  (the extra `grading`)

    return Gradebook(f"sqlite:///{course.folder / 'gradebook.db'}")


def graded(course: Course, student: str, assignment: str = REPORT) -> Any:
    path = course.folder / "autograded" / student / assignment / f"{assignment}.ipynb"
    return nbformat.read(path, as_version=4)


def test_parts_that_are_right_give_their_points(course: Course) -> None:
    mark = course.marks(ADA, BEYOND)["job_script"]
    points = catalogue.find("job_script").points
    assert (mark.points, mark.full_points) == (points * 6 / 9, points)
    assert (
        "<td>signal&emsp;</td><td>0 of 3&emsp;</td>" in mark.finding and "did not pass it on" in mark.finding
    )
    assert "<td>options&emsp;</td><td>2 of 2&emsp;</td><td>right</td>" in mark.finding
    course.command("generate_feedback", BEYOND)
    page = course.folder / "feedback" / ADA / BEYOND / f"{BEYOND}.html"
    assert "<td>signal" in page.read_text()


def test_parts_keep_their_points_when_the_exercise_is_judged_again(course: Course) -> None:
    printed = run_module("labkit", "course", "regrade", "job_script", cwd=course.folder)
    assert "1 student judged again, 0 students with other points" in printed
    assert course.marks(ADA, BEYOND)["job_script"].points > 0


def test_a_report_waits_for_points_below_what_the_machine_finds(course: Course) -> None:
    said = {student: graded(course, student).cells[1].source for student in (ADA, ALAN)}
    assert "Nothing is wrong with the records" in said[ADA] and "95 % interval" in said[ADA]
    assert "987.65 stands in no record" in said[ALAN]
    assert "\n\nPredicted at " in said[ALAN]  # a paragraph below the list
    assert "the prediction is not older than the runs" in said[ALAN]
    with book(course) as gradebook:
        for student, waits in {ADA: True, ALAN: True, EMMY: False}.items():
            grades = gradebook.find_submission_notebook(REPORT, REPORT, student).grades
            assert {grade.name: grade.max_score for grade in grades} == {
                f"{sixth_report.ROW_ID}{name}": points for name, (points, _) in sixth_report.RUBRIC.items()
            }
            assert {bool(grade.needs_manual_grade) for grade in grades} == {waits}
            assert waits or {grade.score for grade in grades} == {0}


def test_a_page_that_was_not_made_by_the_command_is_shown_without_records(course: Course) -> None:
    notebook = course.released(REPORT)
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell("I have measured nothing."))
    course.hand_in("kurt_1004", REPORT, notebook)
    course.grade(REPORT)
    first, second, *rows = graded(course, "kurt_1004").cells
    assert first.source == "I have measured nothing."
    assert "no report is in it" in second.source and len(rows) == len(sixth_report.RUBRIC)


def test_all_points_are_in_canvass_table(course: Course) -> None:
    """Of an exercise in parts, of the rubric as formgrader writes them, and of both contests."""
    with book(course) as gradebook:
        for name, points in ROWS.items():
            grade = gradebook.find_grade(f"{sixth_report.ROW_ID}{name}", REPORT, REPORT, ADA)
            grade.manual_score, grade.needs_manual_grade = points, False
        gradebook.db.commit()
    cause, rank = on_call._drawn(SEED, 4)[1:3]
    records, entries = course.folder / "records", course.folder / "entries"
    records.mkdir()
    entries.mkdir()
    (records / "lovelaceada_1001_6001_progress.json").write_text(json.dumps(diagnosis(cause, rank)))
    (records / "turingalan_LATE_1002_6002_progress-1.json").write_text("[]")
    (entries / "noetheremmy_1003_6003_my_ring.py").write_text(RING)
    (entries / f"{ALAN}.py").write_text("def nothing(p):\n    return []\n")
    say = run_module("labkit", "course", "contest", "records", "--incident", str(SEED), cwd=course.folder)
    assert "incidents: the points of 2 students are in the gradebook." in say
    say = run_module("labkit", "course", "contest", "entries", cwd=course.folder)
    assert "allreduce_contest: the points of 2 students are in the gradebook." in say
    canvas_table(course.folder / "canvas.csv")
    printed = run_module("labkit", "course", "grades", "canvas.csv", "for_canvas.csv", cwd=course.folder)
    assert f"{REPORT}: questions of 2 submissions still wait for points in formgrader" in printed
    text = (course.folder / "for_canvas.csv").read_text()
    imported = canvas_imports(text, {91, 92, 93})
    points = catalogue.find("job_script").points * 6 / 9
    assert imported[91] == {"1001": f"{points:g}", "1002": "", "1003": ""}
    assert imported[92] == {"1001": f"{sum(ROWS.values()):g}", "1002": "0", "1003": "0"}
    assert imported[93] == {"1001": "6", "1002": "0", "1003": ""}  # cause and rank, no number
    head, *rows = csv.reader(text.splitlines())
    contest = {row[1]: row[head.index(contests.SCHEDULES)] for row in rows}
    assert 3 < float(contest["1003"]) < 10 and contest["1002"] == "0"


def test_an_empty_folder_is_no_contest(course: Course) -> None:
    (course.folder / "nothing").mkdir()
    printed = run_module("labkit", "course", "contest", "nothing", cwd=course.folder, code=2)
    assert "expected a file NAME.py of each student" in printed
