"""Submissions that a learning platform has packed: whose each notebook is, and of which assignment.

`read` looks through a folder or an archive, `assign` says what belongs to whom, and `collect` puts the
notebooks where nbgrader looks for them. A file whose student or notebook is not certain is named, with the
reason, and stays where it is.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from labkit.files import atomic_write, printable
from labkit.text import counted

SUBMITTED, EARLIER = "submitted", "earlier"  # folders of the course
MOST_BYTES = 50 << 20  # of a notebook; nbgrader needs ten times as much memory to read it
MOST_FILES = 20_000  # of a download
IGNORED = {"__MACOSX", ".ipynb_checkpoints", ".DS_Store", "Thumbs.db"}
# smithbob_LATE_340934_208490284_05_ring_reduce-1.ipynb: name, the user's number, the file's number
CANVAS = re.compile(r"(?P<name>[^_/]+)_(?P<late>LATE_)?(?P<user>\d+)_(?P<file>\d+)_(?P<rest>.+)")
# Bob Smith_1234567_assignsubmission_file_05_ring_reduce.ipynb, or a folder with the part before the notebook
MOODLE = re.compile(r"(?P<name>.+)_(?P<user>\d+)_assignsubmission_file_?(?P<rest>.*)")
# What browsers, Canvas and JupyterLab add to a file's name: " (1)", "-1", "-Copy1"
AGAIN = re.compile(r"(?: \((\d+)\)|-(\d+)|-Copy(\d+))$")
SEPARATORS = " _-.,"


class DownloadError(Exception):
    """A platform's download cannot be read."""


@dataclass(frozen=True)
class File:
    """A file of a download: its path there, when it was changed, and how to read it."""

    path: PurePosixPath
    changed: datetime  # without a zone: that of an archive is its platform's
    size: int
    content: Callable[[], bytes]


class Place(NamedTuple):
    """Where a file belongs, and what decides which of a student's files is the newest."""

    student: str
    assignment: str
    order: tuple[int, datetime, int]
    is_late: bool  # as the platform says


class Unassigned(NamedTuple):
    """A file that is not collected, and why."""

    path: PurePosixPath
    why: str


def read(download: Path) -> Iterator[File]:
    """Yield the files of a download: of a folder and the archives at its top, or of an archive.

    Raise DownloadError if it is neither, or if it has too many files.
    """
    if download.is_dir():
        files = _of_folder(download)
    elif zipfile.is_zipfile(download):
        files = _of_archive(download, PurePosixPath())
    else:
        raise DownloadError(f"{download}: expected a folder or a .zip archive")
    for number, file in enumerate(files):
        if number >= MOST_FILES:
            raise DownloadError(f"{download}: more than {MOST_FILES:,} files")
        yield file


def _of_folder(folder: Path) -> Iterator[File]:
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in IGNORED)
        for name in sorted(names):
            path = Path(at, name)
            if name in IGNORED or not path.is_file() or path.is_symlink():
                continue
            if path.parent == folder and zipfile.is_zipfile(path):
                yield from _of_archive(path, PurePosixPath(name))
                continue
            about = path.stat()
            place = PurePosixPath(path.relative_to(folder).as_posix())
            yield File(place, datetime.fromtimestamp(about.st_mtime), about.st_size, path.read_bytes)


def _of_archive(archive: Path, place: PurePosixPath) -> Iterator[File]:
    with zipfile.ZipFile(archive) as opened:
        entries = [entry for entry in opened.infolist() if not entry.is_dir()]
    for entry in entries:
        path = PurePosixPath(entry.filename)
        if not IGNORED & {*path.parts}:
            yield File(place / path, _time(entry), entry.file_size, _reader(archive, entry))


def _reader(archive: Path, entry: zipfile.ZipInfo) -> Callable[[], bytes]:
    def content() -> bytes:
        with zipfile.ZipFile(archive) as opened, opened.open(entry) as file:
            return file.read(MOST_BYTES + 1)  # what the archive says of the size may be false

    return content


def _time(entry: zipfile.ZipInfo) -> datetime:
    try:
        return datetime(*entry.date_time)
    except ValueError:  # month 0
        return datetime(1980, 1, 1)


def assign(file: File, assignments: Collection[str]) -> Place | Unassigned:
    """Return whose file it is, and of which assignment; or why that is not certain."""
    name = file.path.name
    if not name.endswith(".ipynb"):
        return Unassigned(file.path, "no notebook")
    moodle = _moodle(file.path)
    canvas = None if moodle else CANVAS.fullmatch(name)
    match = moodle or canvas
    rest = name if match is None else match["rest"] or name
    named = [assignment for assignment in assignments if assignment.lower() in rest.lower()]
    student = student_id(f"{match['name']}_{match['user']}") if match else ""
    if len(named) != 1:
        whose = f"a file of {student}, but " if student else ""
        return Unassigned(file.path, f"{whose}no notebook's name is in its name{_hint(file, assignments)}")
    (assignment,) = named
    before = rest.lower().partition(assignment.lower())[0]
    if not student:
        student = student_id(rest[: len(before)]) or _of_folders(file.path, assignment)
    if not student:
        return Unassigned(file.path, "no student's name stands before the notebook's")
    wrong = _wrong_content(file, assignment, assignments)
    if wrong:
        return Unassigned(file.path, f"a file of {student}: {wrong}")
    again = AGAIN.search(PurePosixPath(rest).stem)
    attempt = int(next(filter(None, again.groups()))) if again else 0
    number = int(canvas["file"]) if canvas else 0
    is_late = canvas is not None and canvas["late"] is not None
    return Place(student, assignment, (number, file.changed, attempt), is_late)


def student_of(path: PurePosixPath) -> str:
    """Return whose file it is that is no notebook, such as progress.json or an entry of a contest.

    The name is that of the platform, or what stands before "progress", or the whole name: ada.py is of ada.
    """
    match = _moodle(path) or CANVAS.fullmatch(path.name)
    if match:
        return student_id(f"{match['name']}_{match['user']}")
    stem = AGAIN.sub("", path.stem)
    return student_id(re.sub("progress$", "", stem)) or student_id(path.parent.name)


def newest_files(download: Path, ending: str) -> dict[str, File]:
    """Return the newest file with an ending, such as ".json", of each student in a download."""
    newest: dict[str, File] = {}
    for file in sorted(read(download), key=lambda file: file.changed):
        if file.path.name.endswith(ending) and file.size <= MOST_BYTES:
            newest[student_of(file.path)] = file
    return newest


def _moodle(path: PurePosixPath) -> re.Match[str] | None:
    """Return what Moodle says of a file, in its name or in that of a folder; None if it says nothing."""
    matches = [MOODLE.fullmatch(part) for part in reversed(path.parts)]
    return next((match for match in matches if match), None)


def student_id(name: str) -> str:
    """Return a student's name as nbgrader can use it, as a folder's name."""
    return re.sub(r"[^\w.@-]+", "_", name.strip(SEPARATORS)).strip(SEPARATORS)


def _of_folders(path: PurePosixPath, assignment: str) -> str:
    """Return the student's name if the folder above, or above the assignment's, has it."""
    folders = [part for part in path.parts[:-1] if assignment.lower() not in part.lower()]
    folders = [part for part in folders if not part.endswith(".zip")]
    return student_id(folders[-1]) if folders else ""


def _hint(file: File, assignments: Iterable[str]) -> str:
    """Return which assignment a file looks like."""
    likely = _by_content(_text(file), assignments)
    return f"; its exercises are those of {likely}" if likely else ""


def _wrong_content(file: File, assignment: str, assignments: Iterable[str]) -> str:
    """Return why a file cannot be a notebook of an assignment; empty if it can."""
    if file.size > MOST_BYTES:
        return f"it is larger than {MOST_BYTES >> 20} MB"
    text = _text(file)
    if not text:
        return "it is no notebook inside"
    likely = _by_content(text, assignments)
    if likely == assignment or not exercises_of(assignment):
        return ""
    return f"its exercises are those of {likely}" if likely else f"it has no exercise of {assignment}"


def _text(file: File) -> str:
    """Return the code of a notebook; nothing if the file is none."""
    if file.size > MOST_BYTES:
        return ""
    try:
        content = json.loads(file.content().decode("utf-8-sig"))
        cells = content["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        return "\n".join("".join(source) for source in sources) or "# no code"
    except (OSError, ValueError, TypeError, KeyError, RecursionError, zipfile.BadZipFile, RuntimeError):
        return ""


def _by_content(text: str, assignments: Iterable[str]) -> str:
    """Return the assignment most of whose exercises a text names; nothing if it names none."""
    words = set(re.findall(r"\w+", text))
    counts = {assignment: len(exercises_of(assignment) & words) for assignment in assignments}
    most = max(counts, key=lambda assignment: counts[assignment], default="")
    return most if counts.get(most) else ""


def exercises_of(assignment: str) -> set[str]:
    """Return the names of the exercises of a notebook."""
    from labkit.exercises import catalogue  # noqa: PLC0415  (NumPy loads with it)

    number = assignment.partition("_")[0]
    return {name for name, exercise in catalogue.exercises().items() if exercise.notebook == number}


class Collected(NamedTuple):
    """What became of a download: lines to print, and which notebooks are new, by student."""

    lines: list[str]
    new: list[tuple[str, str]]  # student, assignment
    unassigned: list[Unassigned]


def collect(download: Path, course: Path, assignments: Sequence[str]) -> Collected:
    """Put the notebooks of a download into the course's folder `submitted`.

    A student's newest notebook counts; older ones, also those that were collected before, go to the folder
    `earlier`. Nothing is overwritten.
    """
    by_place: dict[tuple[str, str], list[tuple[Place, File]]] = {}
    unassigned: list[Unassigned] = []
    for file in read(download):
        place = assign(file, assignments)
        if isinstance(place, Unassigned):
            unassigned.append(place)
        else:
            by_place.setdefault((place.student, place.assignment), []).append((place, file))
    lines, new = [], []
    for (student, assignment), files in sorted(by_place.items()):
        *older, (place, newest) = sorted(files, key=lambda pair: pair[0].order)
        for _, file in older:
            earlier_place = _keep(course, student, assignment, file)
            lines.append(f"{student}: {file.path} is older: it is {earlier_place}")
        line, is_new = _put(course, place, newest)
        lines.append(line)
        if is_new:
            new.append((student, assignment))
    return Collected([printable(line) for line in lines], new, unassigned)


def _put(course: Path, place: Place, file: File) -> tuple[str, bool]:
    """Put a student's newest notebook in its place; return what was done, and whether it is new there."""
    student, assignment = place.student, place.assignment
    target = course / SUBMITTED / student / assignment / f"{assignment}.ipynb"
    content = file.content()
    late = " (late, says the platform)" if place.is_late else ""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, content, file.changed)
        return f"{student}: {assignment} from {file.path}{late}", True
    if target.read_bytes() == content:
        return f"{student}: {assignment} is there already", False
    if datetime.fromtimestamp(target.stat().st_mtime) > file.changed:
        earlier_place = _keep(course, student, assignment, file)
        return f"{student}: {file.path} is older than what was collected before: it is {earlier_place}", False
    earlier_place = _next_name(course, student, assignment)
    target.rename(earlier_place)
    _write(target, content, file.changed)
    before = earlier_place.relative_to(course)
    return f"{student}: {assignment} from {file.path}{late}; what was there before is {before}", True


def _keep(course: Path, student: str, assignment: str, file: File) -> Path:
    """Put an older file into the folder of earlier ones, unless its content is there; return its place."""
    content = file.content()
    folder = course / EARLIER / student / assignment
    for path in sorted(folder.glob("*.ipynb")):
        if path.read_bytes() == content:
            return path.relative_to(course)
    path = _next_name(course, student, assignment)
    _write(path, content, file.changed)
    return path.relative_to(course)


def _next_name(course: Path, student: str, assignment: str) -> Path:
    """Return a name that is free in the folder of earlier notebooks of a student."""
    folder = course / EARLIER / student / assignment
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while (folder / f"{number}.ipynb").exists():
        number += 1
    return folder / f"{number}.ipynb"


def _write(path: Path, content: bytes, changed: datetime) -> None:
    with atomic_write(path) as opened:
        opened.write(content)
    os.utime(path, (changed.timestamp(), changed.timestamp()))


def report(collected: Collected) -> str:
    """Return what became of a download as a text."""
    lines = list(collected.lines)
    if collected.unassigned:
        lines.append("Not collected, because it is not certain whose or what it is:")
        lines += [printable(f"  {path}: {why}") for path, why in collected.unassigned]
    students = len({student for student, _ in collected.new})
    lines.append(
        f"{counted(len(collected.new), 'new notebook')} of {counted(students, 'student')}, "
        f"{counted(len(collected.unassigned), 'file')} not collected."
    )
    return "\n".join(lines)
