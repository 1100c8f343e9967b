"""Grades are written into Canvas's and Moodle's own tables; the platforms' rules of import read them back."""

from __future__ import annotations

import csv
import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from labkit.cli.course import platforms
from labkit.cli.course.platforms import Assignment, Score, TableError

RING = Assignment(
    "05_ring_reduce",
    19,
    {
        "lovelaceada_340934": Score(15, False),
        "grace": Score(8.5, True),
        "Alan_Turing_1234567": Score(19, False),
        "nobody": Score(1, False),
    },
)
SHARDING = Assignment("03_sharding", 15, {"lovelaceada_340934": Score(10 / 3, False)})
CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,05_ring_reduce (77),Essay (78),Final Score
,,,,,Manual Posting,,
    Points Possible,,,,,19,10,(read only)
"Lovelace, Ada",340934,A1,ada,"Parallel, 1",2,9,50
"Hopper, Grace",340935,A2,grace,"Parallel, 1",,9,50
"Noether, Emmy",340936,A3,emmy,"Parallel, 1",7,9,50
"Student, Test",340999,,abc,"Parallel, 1",,,0
"""
MOODLE = """\
Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,\
Last modified (submission),\
Last modified (grade),\
Feedback comments
Participant 1234567,Alan Turing,alan@example.org,Submitted for grading,,19.00,Yes,\
"Sunday, 1 November 2026, 5:03 PM","-",
Participant 1234568,Grace Hopper,grace,Submitted for grading,,19.00,No,\
"Monday, 2 November 2026, 11:00 AM","-",
Participant 1234569,Emmy Noether,emmy@example.org,No submission,3.00,19.00,Yes,-,"-",
"""


def table(path: Path, text: str) -> platforms.Table:
    path.write_text(text)
    return platforms.read(path)


def canvas_imports(text: str, numbers: set[int]) -> dict[int, dict[str, str]]:
    """Return the scores that Canvas takes from a table, by assignment, then by student's number.

    An assignment that Canvas does not know has a negative number.
    """
    head, *rows = csv.reader(text.splitlines())
    assert "Student" in head[0] and "ID" in head[1]
    columns = 3
    if re.search(r"SIS\s+Login\s+ID", head[2]):
        columns += 1
    elif re.search(r"SIS\s+User\s+ID", head[2]) and re.search(r"SIS\s+Login\s+ID", head[3]):
        columns += 2 + ("Integration ID" in head[4])
        columns += "Root Account" in head[columns - 1]
    assert "Section" in head[columns - 1], "Canvas says: invalid header row"
    scores: dict[int, dict[str, str]] = {}
    for index in range(columns, len(head)):
        match = re.search(r"\((\d+)\)$", head[index])
        number = int(match[1]) if match and int(match[1]) in numbers else -index
        scores[number] = {
            row[1]: row[index].strip()
            for row in rows
            if "Points Possible" not in row[0]
            and not all(re.fullmatch(r"\s*(Muted|Manual Posting.*)?\s*", cell) for cell in row)
        }
    return scores


def moodle_imports(text: str) -> dict[str, float]:
    """Return the grades that Moodle takes from a worksheet, by its rules, by the student's number."""
    head, *rows = csv.reader(text.splitlines())
    assert {"Identifier", "Grade", "Last modified (grade)"} <= set(head), "Moodle says: invalid grade import"
    grades = {}
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        is_locked = cells["Grade can be changed"] == "No"
        if cells["Grade"] and float(cells["Grade"]) <= float(cells["Maximum Grade"]) and not is_locked:
            grades[cells["Identifier"].removeprefix("Participant ")] = float(cells["Grade"])
    return grades


def test_canvas_gets_the_scores_and_nothing_else_changes(tmp_path: Path) -> None:
    filled = platforms.canvas(table(tmp_path / "canvas.csv", CANVAS), [RING, SHARDING], {})
    imported = canvas_imports(filled.table.text(), {77, 78})
    assert imported[77] == {"340934": "15", "340935": "8.5", "340936": "7", "340999": ""}
    (new,) = [number for number in imported if number < 0]  # Canvas asks before it makes this assignment
    assert imported[new] == {"340934": "3.33", "340935": "", "340936": "", "340999": ""}
    assert set(imported) == {77, new}
    assert "    Points Possible,,,,,19,15" in filled.table.text()
    assert filled.lines == [
        "05_ring_reduce: not in the table: Alan_Turing_1234567, nobody.",
        "05_ring_reduce: questions of 1 submission still wait for points in formgrader: grace.",
    ]


def test_canvas_may_have_another_title_other_points_and_semicolons(tmp_path: Path) -> None:
    text = CANVAS.replace("05_ring_reduce (77)", "Week 4 (77)").replace(",,19,", ",,20,")
    text = text.replace(", ", " ").replace(",", ";")
    filled = platforms.canvas(table(tmp_path / "canvas.csv", text), [RING], {RING.name: "Week 4"})
    assert canvas_imports(filled.table.text().replace(";", ","), {77})[77]["340934"] == "15"
    assert filled.lines[0] == "05_ring_reduce: Canvas has 20 points, the gradebook 19; the points stay."


def test_moodle_gets_the_grades(tmp_path: Path) -> None:
    filled = platforms.moodle(table(tmp_path / "moodle.csv", f"\ufeff{MOODLE}"), RING)
    assert moodle_imports(filled.table.text()) == {"1234567": 19, "1234569": 3}
    assert filled.lines == [
        "grace: Moodle will not import the grade, because it is locked there.",
        "05_ring_reduce: not in the table: lovelaceada_340934, nobody.",
        "05_ring_reduce: questions of 1 submission still wait for points in formgrader: grace.",
    ]


def test_moodles_maximum_must_be_the_gradebooks_or_the_points_are_converted(tmp_path: Path) -> None:
    read = table(tmp_path / "moodle.csv", MOODLE.replace("19.00", "100.00"))
    with pytest.raises(TableError, match="Moodle's maximum is 100 points, the gradebook's 19"):
        platforms.moodle(read, RING)
    filled = platforms.moodle(read, RING, scale=True)
    assert moodle_imports(filled.table.text())["1234567"] == 100


def test_times_of_a_worksheet_and_of_a_plain_table_are_read(tmp_path: Path) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    (turing, time), (_, other) = platforms.times(table(tmp_path / "moodle.csv", MOODLE), berlin)
    assert turing[0] == "Alan_Turing_1234567"
    assert time == datetime(2026, 11, 1, 16, 3, tzinfo=UTC)
    assert other == datetime(2026, 11, 2, 10, 0, tzinfo=UTC)
    plain = table(tmp_path / "plain.csv", "student,time\nada,2026-07-01 12:00\ngrace,2026-07-01T12:00:00Z\n")
    assert [time.hour for _, time in platforms.times(plain, berlin)] == [12, 12]
    assert platforms.times(plain, berlin)[0][1] == datetime(2026, 7, 1, 10, 0, tzinfo=UTC)
    with pytest.raises(TableError, match="expected a time such as"):
        platforms.times(table(tmp_path / "bad.csv", "student,time\nada,yesterday\n"), berlin)
    with pytest.raises(TableError, match="expected the columns Identifier"):
        platforms.times(table(tmp_path / "other.csv", "a,b\n1,2\n"), berlin)


def test_a_file_that_is_no_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(TableError, match="expected a table with a head"):
        platforms.read(tmp_path / "binary")
    (tmp_path / "empty").touch()
    with pytest.raises(TableError, match="expected a table with a head"):
        platforms.read(tmp_path / "empty")
