"""Notebooks that learning platforms have renamed are collected under the right student, or named."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner, Result

from labkit.checks.exercise import ORIGINALS
from labkit.cli.course.submissions import newest_files, student_of
from labkit.cli.course_command import command

SHARDING, RING = "03_sharding", "05_ring_reduce"
# The names of files as platforms and browsers make them, and whose they are.
NAMES = {
    # Canvas: name, LATE, the user's number, the file's, the student's name of the file, a number
    f"lovelaceada_340934_208490284_{SHARDING}.ipynb": "lovelaceada_340934",
    f"hoppergrace_LATE_340935_208490291_{SHARDING}-1.ipynb": "hoppergrace_340935",
    f"noetheremmy_340936_208490292_my {SHARDING} (2).ipynb": "noetheremmy_340936",
    # Moodle: flat, and a folder for each student
    f"Alan Turing_1234567_assignsubmission_file_{SHARDING}.ipynb": "Alan_Turing_1234567",
    f"Émilie du Châtelet_1234568_assignsubmission_file_/{SHARDING} (1).ipynb": "Émilie_du_Châtelet_1234568",
    f"Participant_77_assignsubmission_file/{SHARDING}.ipynb": "Participant_77",
    # Neither: the student's name stands before the notebook's, or is that of the folder
    f"kurt_{SHARDING}.ipynb": "kurt",
    f"van_der_waerden_{SHARDING}-1.ipynb": "van_der_waerden",
    f"sofia-{SHARDING} (1).ipynb": "sofia",
    f"{SHARDING.upper()}".join(["max_", ".ipynb"]): "max",
    f"john/{SHARDING}.ipynb": "john",
    f"carl/{SHARDING}/{SHARDING}-Copy1.ipynb": "carl",
}


def notebook(assignment: str = SHARDING, text: str = "") -> bytes:
    """Return what a student hands in, with a text that tells it from others."""
    content: Any = nbformat.read(ORIGINALS / f"{assignment}.ipynb", as_version=4)
    content.cells.append(nbformat.v4.new_code_cell(f"# {text}", id="last"))
    return nbformat.writes(content).encode()


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a course, in which the commands run."""
    folder = tmp_path / "course"
    for name in (SHARDING, RING):
        (folder / "source" / name).mkdir(parents=True)
    (folder / "nbgrader_config.py").touch()
    monkeypatch.chdir(folder)
    return folder


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return path


def submissions(download: Path, code: int = 0) -> Result:
    result = CliRunner().invoke(command, ["submissions", str(download)])
    assert result.exit_code == code, result.output
    return result


def submitted(course: Path) -> dict[str, bytes]:
    """Return what lies where nbgrader looks for it, by student."""
    paths = (course / "submitted").glob(f"*/{SHARDING}/{SHARDING}.ipynb")
    return {path.parents[1].name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("form", ["folder", "archive", "archive in a folder"])
def test_each_platforms_names_are_assigned(course: Path, tmp_path: Path, form: str) -> None:
    files = {name: notebook(text=student) for name, student in NAMES.items()}
    files["__MACOSX/._x.ipynb"] = b""
    if form == "folder":
        download = write(tmp_path / "download", files)
    else:
        (tmp_path / "download").mkdir()
        download = archive(tmp_path / "download" / "all.zip", files)
        download = download.parent if form == "archive in a folder" else download
    output = submissions(download).output
    assert submitted(course) == {student: notebook(text=student) for student in NAMES.values()}
    assert f"{len(NAMES)} new notebooks of {len(NAMES)} students, 0 files not collected." in output
    assert "hoppergrace_340935: 03_sharding from" in output and "(late, says the platform)" in output


def test_what_cannot_be_assigned_is_named_and_left(course: Path, tmp_path: Path) -> None:
    files = {
        f"{SHARDING}.ipynb": notebook(),
        "lovelaceada_1_2_final.ipynb": notebook(RING),
        f"hoppergrace_1_3_{SHARDING}.ipynb": notebook(RING),
        f"Alan Turing_9_assignsubmission_file_{SHARDING}.ipynb": b"PK not a notebook",
        f"kurt_{SHARDING}.ipynb": json.dumps({"cells": []}).encode(),
        f"noetheremmy_4_5_{SHARDING}.pdf": b"%PDF",
    }
    said = submissions(write(tmp_path / "download", files), code=1).output
    assert submitted(course) == {}
    assert "03_sharding.ipynb: no student's name stands before the notebook's" in said
    assert (
        "final.ipynb: a file of lovelaceada_1, but no notebook's name is in its name; "
        f"its exercises are those of {RING}" in said
    )
    assert f"a file of hoppergrace_1: its exercises are those of {RING}" in said
    assert "a file of Alan_Turing_9: it is no notebook inside" in said
    assert f"a file of kurt: it has no exercise of {SHARDING}" in said
    assert f"noetheremmy_4_5_{SHARDING}.pdf: no notebook" in said
    assert "0 new notebooks of 0 students, 6 files not collected." in said


def test_the_newest_counts_and_nothing_is_lost(course: Path, tmp_path: Path) -> None:
    first = {f"ada_1_10_{SHARDING}.ipynb": notebook(text="first")}
    both = {f"ada_1_9_{SHARDING}-1.ipynb": notebook(text="before"), **first}
    said = submissions(archive(tmp_path / "1.zip", both)).output
    assert submitted(course)["ada_1"] == notebook(text="first")  # Canvas numbers its files in their order
    assert f"ada_1_9_{SHARDING}-1.ipynb is older: it is earlier/ada_1/{SHARDING}/1.ipynb" in said
    assert "is there already" in submissions(tmp_path / "1.zip").output
    assert len(list((course / "earlier").rglob("*.ipynb"))) == 1

    download = write(tmp_path / "again", {f"ada_1_11_{SHARDING}-2.ipynb": notebook(text="second")})
    said = submissions(download).output
    assert submitted(course)["ada_1"] == notebook(text="second")
    assert f"what was there before is earlier/ada_1/{SHARDING}/2.ipynb" in said

    old = write(tmp_path / "old", {f"ada_1_2_{SHARDING}.ipynb": notebook(text="oldest")})
    os.utime(old / f"ada_1_2_{SHARDING}.ipynb", (1e9, 1e9))
    assert "is older than what was collected before" in submissions(old).output
    assert submitted(course)["ada_1"] == notebook(text="second")
    kept = {path.read_bytes() for path in (course / "earlier").rglob("*.ipynb")}
    assert kept == {notebook(text=text) for text in ("before", "first", "oldest")}


def test_a_name_cannot_lead_out_of_the_course(course: Path, tmp_path: Path) -> None:
    hostile = {
        f"../../x_{SHARDING}.ipynb": notebook(),
        f"../{SHARDING}.ipynb": notebook(),
        f"/etc/{SHARDING}.ipynb": notebook(),
        f"-f_{SHARDING}.ipynb": notebook(),
    }
    submissions(archive(tmp_path / "all.zip", hostile), code=1)
    assert set(submitted(course)) == {"x", "etc", "f"}
    assert not [path for path in tmp_path.rglob("*.ipynb") if course not in path.parents]


def test_a_download_or_a_folder_that_is_none_is_one_line(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("x")
    assert "expected a folder or a .zip archive" in submissions(tmp_path / "text", code=2).output
    monkeypatch.chdir(tmp_path)
    assert "is no course: expected nbgrader_config.py" in submissions(tmp_path / "text", code=2).output


@pytest.mark.parametrize(
    ("path", "student"),
    [
        ("lovelaceada_340934_208490284_progress.json", "lovelaceada_340934"),
        ("hoppergrace_LATE_340935_208490291_my_entry-1.py", "hoppergrace_340935"),
        ("Alan Turing_1234567_assignsubmission_file_/progress.json", "Alan_Turing_1234567"),
        ("ada.json", "ada"),
        ("ada_progress (1).json", "ada"),
        ("ada/progress.json", "ada"),
    ],
)
def test_a_file_that_is_no_notebook_has_the_students_name(path: str, student: str) -> None:
    assert student_of(PurePosixPath(path)) == student


def test_a_students_newest_file_counts_in_a_contest(tmp_path: Path) -> None:
    files = {"ada.json": b"old", "ada-1.json": b"new", "ada.txt": b"none"}
    write(tmp_path, files)
    os.utime(tmp_path / "ada.json", (0, 0))
    newest = newest_files(tmp_path, ".json")
    assert {student: file.content() for student, file in newest.items()} == {"ada": b"new"}
