"""The numbers in the guide for instructors and in the notebooks' first cells are those of the exercises."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from labkit.cli import release
from labkit.cli.course import copies
from labkit.exercises import catalogue
from tests.conftest import run_notebook

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tools import course_numbers  # noqa: E402

sys.path.pop(0)

PAGE = (ROOT / "docs/instructors.md").read_text()
SYLLABUS = (ROOT / "docs/syllabus.md").read_text()
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
EXERCISES = catalogue.exercises()


PLANS = {"two": 120, "one": 60, "six": 120, "twelve": 90}  # minutes of a session
SESSIONS = [(plan, each) for plan in PLANS for each in course_numbers.sessions(PAGE, plan)]
PARTS = [
    pytest.param((session, number), id=f"{plan}-{session.name}-{number}", marks=pytest.mark.thorough)
    for plan, session in SESSIONS
    for number in session.parts
]
LONGEST_CORE_H = 10  # by a first reading's measure
LEAST_LEFT_MIN = 5  # of a session, for questions
# Notebooks that show more than they should, and their lines at present: take out those that no longer do.
READ_TOO_MUCH: dict[str, int] = {}  # they may not grow
MOST_READ = {"core": 4, "other": 5}  # lines of code that a student only reads, for each line that they write


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_states_the_minutes_of_its_exercises(notebook: Path) -> None:
    number = notebook.name.partition("_")[0]
    total, minutes, count = course_numbers.times(notebook)
    assert (minutes, count) == course_numbers.of_catalogue(number)[:2]
    assert total == course_numbers.first_reading(number)


def test_the_core_path_is_stated_in_its_notebooks() -> None:
    minutes = {number: course_numbers.core_minutes(number) for number in course_numbers.CORE}
    for notebook in NOTEBOOKS:
        number = notebook.name.partition("_")[0]
        first = " ".join("".join(nbformat.read(notebook, as_version=4).cells[0].source).split())
        assert ("on the core path" in first) == (number in minutes and course_numbers.leaves_out(number)), (
            number
        )
        if number in minutes:
            assert minutes[number] == course_numbers.first_reading(number, on_core_path=True)
    assert sum(minutes.values()) / 60 <= LONGEST_CORE_H


def test_what_is_marked_is_not_on_the_core_path() -> None:
    """The start page, which reads the headings of exercises, leaves out the same ones as the estimate."""
    for number in course_numbers.CORE:
        for cell in course_numbers.up_to(number, [""]):
            if cell.kind == "check":
                assert EXERCISES[cell.task].heading.on_core_path == cell.is_core, cell.task
    cells = {cell.id: cell for cell in course_numbers.up_to("03", [""])}
    names = "read", "seen", "skew", "exercise-accuracy-by-label-task", "train", "skew-question", "beyond"
    is_core = [cells[name].is_core for name in names]
    assert is_core == [False, True, True, False, True, True, True]


def test_a_folded_cell_and_a_stub_take_no_time_to_read() -> None:
    shown = course_numbers.Cell("a", "code", "1", "", "x = 1\n\ny = 2\n", figures=1)
    assert course_numbers.seconds_to_read(shown) == course_numbers.FIGURE_S + 2 * course_numbers.CODE_LINE_S
    for unread in shown._replace(is_folded=True), shown._replace(kind="stub"):
        assert course_numbers.seconds_to_read(unread) == course_numbers.FIGURE_S


def test_a_line_of_code_is_no_comment_docstring_or_magic() -> None:
    cell = '%%px\n# why\ndef f():\n    """Return\n\n    one.\n    """\n\n    return 1\n'
    assert course_numbers.code_lines(cell) == 2


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_student_writes_enough_of_what_a_notebook_shows(notebook: Path) -> None:
    number = notebook.name.partition("_")[0]
    written, read = course_numbers.lines_written_and_read(number)
    most = MOST_READ["core" if number in course_numbers.CORE else "other"]
    if number in READ_TOO_MUCH:
        assert most * written < read <= READ_TOO_MUCH[number]
    else:
        assert read <= most * written


def test_the_readme_lists_every_notebook() -> None:
    rows = re.findall(r"^\| \[[^]]+\]\(notebooks/([^)]+)\)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == [path.name for path in NOTEBOOKS]


def test_the_numbers_of_the_guide_are_true() -> None:
    """If not: python tools/course_numbers.py."""
    assert course_numbers.with_numbers(PAGE) == PAGE


@pytest.mark.parametrize("name", sorted({count.page for count in course_numbers.COUNTS}))
def test_the_counts_of_a_page_are_true(name: str) -> None:
    """If not: python tools/course_numbers.py."""
    text = (ROOT / name).read_text()
    assert course_numbers.with_counts(name, text) == text
    with pytest.raises(ValueError, match=r"expected .* times, found 0"):
        course_numbers.with_counts(name, "")


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_has_each_exercise_once_and_in_its_notebooks_session(plan: str) -> None:
    planned = []
    for session in course_numbers.sessions(PAGE, plan):
        names = session.in_class + session.at_home
        assert {EXERCISES[name].notebook for name in names} <= set(session.parts)
        planned += names
    assert len(planned) == len(set(planned))
    if plan == "twelve":
        assert set(planned) == set(EXERCISES)
    if plan == "six":  # whole notebooks
        chosen = {EXERCISES[name].notebook for name in planned}
        assert set(planned) == {name for name, each in EXERCISES.items() if each.notebook in chosen}


def test_the_syllabus_names_exercises_of_the_six_sessions() -> None:
    rows = re.findall(r"^\| (\d) \| .* \| (\d\d) \| (.*) \|$", SYLLABUS, re.MULTILINE)
    planned = course_numbers.sessions(PAGE, "six")
    assert [(name, number) for name, number, _ in rows] == [(each.name, *each.parts) for each in planned]
    for (_, _, names), session in zip(rows, planned, strict=True):
        assert set(re.findall(r"`(\w+)`", names)) <= {*session.in_class, *session.at_home}


def test_the_figures_to_begin_with_are_in_their_sections() -> None:
    found = re.findall(r"^\| (\d\d\w?) \|.*\[section (\d)\]\(.*\), cells? (.*) \| .* \|$", PAGE, re.MULTILINE)
    assert [number for number, *_ in found] == [
        path.name.partition("_")[0] for path in NOTEBOOKS[:12]
    ]  # 11 shows that of 06
    for number, section, names in found:
        cells = course_numbers.up_to(number, [section])
        figures = {cell.id for cell in cells if cell.section == section and cell.figures}
        assert {*re.findall(r"`([\w-]+)`", names)} <= figures


@pytest.mark.parametrize(("plan", "session"), SESSIONS, ids=lambda each: getattr(each, "name", each))
def test_a_session_fits_and_its_exercises_are_in_the_sections_that_students_read(
    plan: str, session: course_numbers.Session
) -> None:
    assert sum(map(math.ceil, course_numbers.minutes_of(session))) <= PLANS[plan] - LEAST_LEFT_MIN
    read = {
        cell.task
        for number, sections in session.parts.items()
        for cell in course_numbers.up_to(number, sections)
        if cell.section in sections
    }
    assert set(session.in_class) <= read


@pytest.mark.parametrize("part", PARTS)
def test_a_session_runs_in_a_released_copy(
    part: tuple[course_numbers.Session, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all exercises, only those of this session are written; the notebook ends with the session's part."""
    session, number = part
    monkeypatch.chdir(ROOT)
    assert CliRunner().invoke(release.command, [str(tmp_path / "students")]).exit_code == 0
    (path,) = (tmp_path / "students").glob(f"{number}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    wanted = {cell.id for cell in course_numbers.up_to(number, session.parts[number])}
    notebook.cells = [cell for cell in notebook.cells if cell.id in wanted]
    for pair in copies.pairs(notebook):
        if pair.name in session.in_class:
            copies.write_answer(pair.stub, pair.name, EXERCISES[pair.name].text)
    nbformat.write(notebook, path)
    for pair in copies.pairs(run_notebook(path)):
        printed = "".join(output.get("text", "") for output in pair.check.outputs)
        words = f"{pair.name}: correct (" if pair.name in session.in_class else "not written yet"
        assert words in printed
