"""A made-up class: what it hands in through Canvas, through Moodle and as plain files, and their tables.

`python -m tests.grading.made_class 30` makes a course, runs the commands of docs/course.md in it, and prints
the minutes that each took.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from labkit.checks.exercise import ORIGINALS
from labkit.cli.course import copies, questions
from labkit.exercises import catalogue
from tests.grading.course import ROOT, run_module

ASSIGNMENT = "03_sharding"
EXERCISE = "shard_bounds"
PAGE = ROOT / "docs/course.md"
TABLE = re.compile(r"<!-- course -->\n\n(.*?)\n\n<!-- end -->", re.DOTALL)
NOT_RUN = ("jupyter",)  # an instructor's own work, in a browser
HANDED_IN = "Friday, 6 November 2026, 10:00 AM", "Monday, 9 November 2026, 10:00 AM"  # in time, and late


class Student(NamedTuple):
    """A student: the platform, a number there, and how the work is."""

    name: str
    platform: str  # canvas, moodle, or plain: the files are named after logins of Canvas
    number: int
    is_late: bool = False
    is_wrong_file: bool = False

    @property
    def id(self) -> str:
        """Return the name of the student's folder."""
        first, last = self.name.split()
        names = {
            "canvas": f"{(last + first).lower()}_{self.number}",
            "moodle": f"{first}_{last}_{self.number}",
            "plain": f"login{self.number}",
        }
        return names[self.platform]

    def file(self) -> str:
        """Return the name that the platform gives to the student's file."""
        first, last = self.name.split()
        if self.platform == "canvas":
            late = "LATE_" if self.is_late else ""
            return f"{(last + first).lower()}_{late}{self.number}_{self.number + 5000}_{ASSIGNMENT}-1.ipynb"
        if self.platform == "plain":
            return f"{self.id}_{ASSIGNMENT}.ipynb"
        return f"{self.name}_{self.number}_assignsubmission_file_/{ASSIGNMENT} (1).ipynb"


def made_class(size: int) -> list[Student]:
    """Return a class: a third on each platform, two late (one of them to be extended), one wrong file."""
    named = [Student("Ada Lovelace", "canvas", 1001), Student("Alan Turing", "moodle", 1002, is_late=True)]
    named += [Student("Emmy Noether", "moodle", 1003, is_late=True)]
    named += [Student("Grace Hopper", "canvas", 1004, is_wrong_file=True)]
    for number in range(1005, 1001 + size):
        platform = ("canvas", "moodle", "plain")[number % 3]
        named.append(Student(f"First{number} Last{number}", platform, number))
    return named[:size]


def work(student: Student, released: Path) -> bytes:
    """Return what a student hands in: some exercises right, some not, one question answered."""
    if student.is_wrong_file:
        return (ORIGINALS / "00_meet_the_cluster.ipynb").read_bytes()
    notebook: Any = nbformat.read(released, as_version=4)
    pairs = [pair for pair in copies.pairs(notebook) if not catalogue.find(pair.name).on_ranks]
    for pair in pairs:
        if pair.name != EXERCISE or student.number % 3:
            copies.write_answer(pair.stub, pair.name, catalogue.find(pair.name).text)
        else:
            pair.stub.source = f"def {EXERCISE}(n, rank, size):\n    return rank * n // size, n"
    question = next(questions.questions(notebook))
    question.cell.source = f'answer("{question.names[0]}", """Each block holds one label: shuffle first.""")'
    return nbformat.writes(notebook).encode()


def archives(students: list[Student], course: Path) -> None:
    """Write what the platforms let an instructor download: archives and tables."""
    released = course / f"release/{ASSIGNMENT}/{ASSIGNMENT}.ipynb"
    for platform in ("canvas", "moodle"):
        with zipfile.ZipFile(course / f"{platform}.zip", "w") as archive:
            for student in students:
                if student.platform == platform:
                    archive.writestr(student.file(), work(student, released))
    (course / "files").mkdir()
    for student in students:
        if student.platform == "plain":
            (course / "files" / student.file()).write_bytes(work(student, released))
    lines = [f"Student,ID,SIS User ID,SIS Login ID,Section,{ASSIGNMENT} (77)", "    Points Possible,,,,,17"]
    lines += [
        f'"{student.name.split()[1]}, {student.name.split()[0]}",{student.number},,login{student.number},A,'
        for student in students
        if student.platform != "moodle"
    ]
    (course / "canvas.csv").write_text("\n".join(lines) + "\n")
    head = "Identifier,Full name,Status,Grade,Maximum Grade,Grade can be changed,"
    lines = [f"{head}Last modified (submission),Last modified (grade)"]
    lines += [
        f'Participant {student.number},{student.name},Submitted,,17.00,Yes,"{HANDED_IN[student.is_late]}",-'
        for student in students
        if student.platform == "moodle"
    ]
    (course / "worksheet.csv").write_text("\n".join(lines) + "\n")


def commands() -> list[list[str]]:
    """Return the commands of the page's table, in their order."""
    (table,) = TABLE.findall(PAGE.read_text())
    return [shlex.split(row.rpartition(" | `")[2].rstrip("` |")) for row in table.splitlines()[2:]]


def run_course(folder: Path, students: list[Student]) -> Iterator[tuple[str, str, float]]:
    """Run each command of the page; yield it, what it printed, and the seconds it took."""
    course = folder / "course"
    (folder / "shared").mkdir()
    for words in commands():
        if words[0] in NOT_RUN:
            continue
        is_first_day = words[1] in ("release", "solutions")
        if words[2:3] == ["submissions"] and not (course / "canvas.zip").exists():
            archives(students, course)
        if words[1:3] == ["progress", "--share"]:
            (course / "shared").mkdir()
        began = time.monotonic()
        printed = run_module(*words, cwd=folder if is_first_day else course, code=None)
        yield shlex.join(words), printed, time.monotonic() - began


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        total_s = 0.0
        for command, text, seconds in run_course(Path(place), made_class(int(sys.argv[1]))):
            total_s += seconds
            lines = text.strip().splitlines()
            errors = [line for line in lines[:-1] if "ERROR" in line]
            shown = "\n          ".join(line[:150] for line in [*errors[:5], *lines[-1:]])
            print(f"{seconds:7.1f} s  {command}\n          {shown}", flush=True)
        print(f"{total_s / 60:.1f} minutes")
