"""A class's table shows what students have chosen to share: where they are, findings, many tries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.cli.course_command import command
from labkit.cli.exercises import progress
from labkit.exercises import catalogue, checking, record

FIRST, SECOND, THIRD = list(catalogue.exercises())[:3]


def share(folder: Path, student: str, monkeypatch: pytest.MonkeyPatch) -> str:
    result = CliRunner().invoke(progress, ["--share", str(folder), "--name", student])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a class of three, and a file that is none."""
    folder = tmp_path / "class"
    folder.mkdir()
    for student in ("ada", "grace", "emmy"):
        monkeypatch.setenv(record.FILE, str(tmp_path / f"progress-{student}.json"))
        record.note(FIRST, True, "def secret_code(): pass")
        record.keep_answer("00-ring-bytes", "my secret answer")
        if student != "emmy":
            for _ in range(11 if student == "ada" else 2):
                record.note(SECOND, False, finding="the last item is on no rank")
        share(folder, student, monkeypatch)
    (folder / "bad.json").write_text(json.dumps({"shared": {FIRST: 5}}))
    return folder


def test_a_shared_file_holds_states_tries_and_findings_alone(folder: Path) -> None:
    content = json.loads((folder / "ada.json").read_text())
    assert content == {
        "shared": {
            FIRST: {"state": "done", "tries": 1, "finding": ""},
            SECOND: {"state": "tried", "tries": 11, "finding": "the last item is on no rank"},
        }
    }


def test_the_table_says_where_each_student_is_what_is_found_most_and_who_is_stuck(folder: Path) -> None:
    lines = CliRunner().invoke(command, ["progress", str(folder)]).output.splitlines()
    assert lines == [
        f"ada: 1 exercise done, at {SECOND}",
        f"emmy: 1 exercise done, at {SECOND}",
        f"grace: 1 exercise done, at {SECOND}",
        "",
        "Most frequent findings:",
        f"  2 students, {SECOND}: the last item is on no rank",
        "",
        "10 tries or more, and not correct yet:",
        f"  ada, {SECOND}: 11 tries",
        "",
        "Not readable: bad.json.",
    ]


def test_a_check_counts_tries_and_keeps_its_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))

    def my_items(n: int, rank: int, size: int) -> list[int]:
        return []

    for _ in range(2):
        checking.check(my_items)
    entry = record.load()["my_items"]
    assert entry["checks"] == 2 and entry["finding"]


@pytest.mark.parametrize("name", ["../x", "", "a b", ".hidden"])
def test_a_name_that_is_no_files_name_is_refused(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(progress, ["--share", str(tmp_path), "--name", name or " "])
    assert result.exit_code == 2 and "expected letters, digits" in result.output
    assert list(tmp_path.iterdir()) == []
