"""Tables of learning platforms: grades are written into what Canvas and Moodle let an instructor download.

Canvas imports a table if its first columns are those of its export, up to `Section`, and gives the scores of
a column to the assignment whose title and number stand in the column's head. It asks before it makes a new
assignment. (`lib/gradebook_importer.rb` in its source.)

Moodle imports a grading worksheet if it has the columns `Identifier`, `Grade` and `Last modified (grade)`. It
skips rows without a grade, with one above the maximum, and of grades that are locked.
(`mod/assign/feedback/offline/importgradeslib.php` in its source.)
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from labkit.cli.course.submissions import student_id
from labkit.files import read_input
from labkit.text import counted

# The columns of Canvas's export that say who a student is, in any number, from the first on.
CANVAS_COLUMNS = "Student", "ID", "SIS User ID", "SIS Login ID", "Integration ID", "Root Account", "Section"
CANVAS_NAMES = "ID", "SIS User ID", "SIS Login ID"
POINTS_POSSIBLE = "Points Possible"
IDENTIFIER, GRADE, MODIFIED = "Identifier", "Grade", "Last modified (grade)"
MAXIMUM, CHANGEABLE, HANDED_IN = "Maximum Grade", "Grade can be changed", "Last modified (submission)"
MOODLE_NAMES = "Username", "ID number", "Email address"
# As Moodle writes times in English: Sunday, 1 November 2026, 5:03 PM
TIMES = "%A, %d %B %Y, %I:%M %p", "%A, %d %B %Y, %H:%M", "%A, %B %d, %Y, %I:%M %p"


class TableError(Exception):
    """A platform's table cannot be used."""


class Score(NamedTuple):
    """What the gradebook says of a submission: points after a penalty, and whether some are open."""

    points: float
    is_open: bool  # questions wait for points


class Assignment(NamedTuple):
    """The scores of an assignment by student, and the most points there are."""

    name: str
    maximum: float
    scores: Mapping[str, Score]


class Table(NamedTuple):
    """A table of a platform: its head, its rows as lists of cells, and what separates cells."""

    head: list[str]
    rows: list[list[str]]
    separator: str

    def column(self, name: str) -> int:
        """Return the number of a column; -1 if there is none."""
        return self.head.index(name) if name in self.head else -1

    def cell(self, row: list[str], name: str) -> str:
        """Return what stands in a column of a row; nothing if the table has no such column."""
        number = self.column(name)
        return row[number].strip() if 0 <= number < len(row) else ""

    def text(self) -> str:
        """Return the table as a file has it."""
        written = io.StringIO()
        writer = csv.writer(written, delimiter=self.separator, lineterminator="\n")
        writer.writerows([self.head, *self.rows])
        return written.getvalue()


class Filled(NamedTuple):
    """A table with grades, and lines that say what was done and what was not."""

    table: Table
    lines: list[str]


def read(path: Path) -> Table:
    """Read a table. Raise TableError if it is none."""
    try:
        text = read_input(path).decode("utf-8-sig")
        first = text.partition("\n")[0]
        separator = ";" if first.count(";") > first.count(",") else ","
        head, *rows = [row for row in csv.reader(io.StringIO(text), delimiter=separator) if row]
    except (UnicodeDecodeError, ValueError, csv.Error):
        raise TableError(f"{path}: expected a table with a head, comma-separated and in UTF-8") from None
    return Table([name.strip() for name in head], rows, separator)


def is_canvas(table: Table) -> bool:
    """Tell whether a table is Canvas's export of its gradebook, by the rule of Canvas's importer."""
    head = table.head
    return len(head) > 3 and "Student" in head[0] and "ID" in head[1] and "Section" in head


def is_moodle(table: Table) -> bool:
    """Tell whether a table is a grading worksheet of Moodle that Moodle will import."""
    return {IDENTIFIER, GRADE, MODIFIED} <= set(table.head)


def canvas(table: Table, assignments: list[Assignment], columns: Mapping[str, str]) -> Filled:
    """Return Canvas's table with the columns that say who a student is, and one for each assignment.

    `columns` maps an assignment to the head of its column, if that is not its name. Cells of students who
    have not handed in stay as they are. Canvas changes nothing that its table does not hold.
    """
    names = [name for name in table.head if name in CANVAS_COLUMNS]
    if table.head[: len(names)] != names:
        raise TableError(f"expected the columns up to Section first, as in Canvas's export, got {table.head}")
    heads = [_canvas_head(table, columns.get(assignment.name, assignment.name)) for assignment in assignments]
    rows, lines, students = [], [], set[str]()
    for row in table.rows:
        before = [table.cell(row, head) for head in heads]
        if POINTS_POSSIBLE in row[0]:
            for assignment, points in zip(assignments, before, strict=True):
                lines += _other_maximum(assignment, points)
            defaults = [_number(assignment.maximum) for assignment in assignments]
            new = [old or default for old, default in zip(before, defaults, strict=True)]
        else:
            whose = {
                name
                for assignment in assignments
                for name in assignment.scores
                if _is_row_of(table, row, name)
            }
            students |= whose
            new = [
                _canvas_cell(assignment, whose, old)
                for assignment, old in zip(assignments, before, strict=True)
            ]
        rows.append(row[: len(names)] + new)
    lines += _unmatched(assignments, students)
    return Filled(Table(table.head[: len(names)] + heads, rows, table.separator), lines)


def _canvas_cell(assignment: Assignment, whose: set[str], old: str) -> str:
    """Return the points of a row's student, or what stood there before if nothing was handed in."""
    points = [score.points for student, score in assignment.scores.items() if student in whose]
    return _number(points[0]) if points else old


def _canvas_head(table: Table, name: str) -> str:
    """Return the head of a column in Canvas's table, "Ring (1234)"; the name alone if there is none yet."""
    same = [head for head in table.head if name in (head, re.sub(r" \(\d+\)$", "", head))]
    if len(same) > 1:
        raise TableError(f"{name}: the columns {', '.join(same)} have this title; name one with --column")
    return same[0] if same else name


def _is_row_of(table: Table, row: list[str], student: str) -> bool:
    """Tell whether a row is that of a student, by the number that Canvas's archive gives, or by the login."""
    number = re.search(r"_(\d+)$", student)
    is_numbered = number is not None and number[1] == table.cell(row, "ID")
    return is_numbered or student in {table.cell(row, name) for name in CANVAS_NAMES} - {""}


def moodle(table: Table, assignment: Assignment, *, scale: bool = False) -> Filled:
    """Return Moodle's worksheet with the grades of an assignment, in all rows of students who handed in.

    Raise TableError if Moodle's maximum is another, unless `scale`: then scores are fractions of it.
    """
    students, lines, rows, grade = set[str](), [], [], table.column(GRADE)
    for row in table.rows:
        new = list(row)
        student = next((name for name in moodle_names(table, row) if name in assignment.scores), None)
        if student is not None:
            students.add(student)
            maximum = _maximum(table, row, assignment.maximum)
            if maximum != assignment.maximum and not scale:
                raise TableError(
                    f"Moodle's maximum is {_number(maximum)} points, the gradebook's "
                    f"{_number(assignment.maximum)}: change Moodle's, or let --scale convert the points"
                )
            points = min(assignment.scores[student].points, assignment.maximum)
            factor = maximum / assignment.maximum if assignment.maximum else 1.0
            new[grade] = _number(points * factor)
            if table.cell(row, CHANGEABLE) == "No":
                lines.append(f"{student}: Moodle will not import the grade, because it is locked there.")
        rows.append(new)
    lines += _unmatched([assignment], students)
    return Filled(Table(table.head, rows, table.separator), lines)


def moodle_names(table: Table, row: list[str]) -> list[str]:
    """Return the names of folders in `submitted` that can be those of a row's student."""
    identifier = table.cell(row, IDENTIFIER)  # "Participant 1234567"
    number = identifier.rpartition(" ")[2]
    full = student_id(f"{table.cell(row, 'Full name')}_{number}")
    others = [table.cell(row, name) for name in MOODLE_NAMES]
    return [full, student_id(identifier), *filter(None, others)]


def _maximum(table: Table, row: list[str], default: float) -> float:
    text = table.cell(row, MAXIMUM).replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return default


def _other_maximum(assignment: Assignment, text: str) -> list[str]:
    """Return a line if Canvas's most points, a text, are others than the gradebook's."""
    try:
        is_other = bool(text) and float(text.replace(",", ".")) != assignment.maximum
    except ValueError:
        is_other = False
    if not is_other:
        return []
    maximum = _number(assignment.maximum)
    return [f"{assignment.name}: Canvas has {text} points, the gradebook {maximum}; the points stay."]


def _unmatched(assignments: list[Assignment], students: set[str]) -> list[str]:
    """Return lines on students of the gradebook who have no row, and on points that are open."""
    lines = []
    for assignment in assignments:
        missing = sorted(set(assignment.scores) - students)
        if missing:
            lines.append(f"{assignment.name}: not in the table: {', '.join(missing)}.")
        still_open = sorted(student for student, score in assignment.scores.items() if score.is_open)
        if still_open:
            count = counted(len(still_open), "submission")
            lines.append(
                f"{assignment.name}: questions of {count} still wait for points in formgrader: "
                f"{', '.join(still_open)}."
            )
    return lines


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def times(table: Table, zone: ZoneInfo) -> list[tuple[list[str], datetime]]:
    """Return for each row the names that its student can have, and when the student handed in.

    The table is Moodle's grading worksheet, or has the columns `student` and `time`. `zone` is that of times
    that name none. Raise TableError for a time that cannot be read.
    """
    if {IDENTIFIER, HANDED_IN} <= set(table.head):
        rows = [(moodle_names(table, row), table.cell(row, HANDED_IN)) for row in table.rows]
    elif {"student", "time"} <= set(table.head):
        rows = [([table.cell(row, "student")], table.cell(row, "time")) for row in table.rows]
    else:
        raise TableError(
            f"expected the columns {IDENTIFIER} and {HANDED_IN}, or student and time; "
            f"got {', '.join(table.head)}"
        )
    return [(names, parsed_time(text, zone)) for names, text in rows if text not in ("", "-")]


def parsed_time(text: str, zone: ZoneInfo) -> datetime:
    """Return a time as Moodle or ISO 8601 writes it; without a zone, it is in this one."""
    for form in TIMES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=zone)
        except ValueError:
            continue
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise TableError(
            f"{text!r}: expected a time such as 2026-11-01 17:03 or Sunday, 1 November 2026, 5:03 PM"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=zone)
