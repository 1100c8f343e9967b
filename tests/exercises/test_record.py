"""What is done is kept across restarts, and shared by notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.cli.exercises import progress as command
from labkit.exercises import catalogue, checking, record


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "folder" / "progress.json"
    monkeypatch.setenv(record.FILE, str(path))
    return path


def test_notebooks_that_write_at_the_same_time_lose_nothing() -> None:
    program = (
        "import sys; from labkit.exercises import record\n"
        "for i in range(10): record.note(sys.argv[1] + str(i), True)"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "abcd"]
    assert [job.wait() for job in jobs] == [0] * 4
    assert len(record.load()) == 40


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"exercises": 3}',
        b'{"exercises": {"a": 1}}',
        b'{"exercises": {"a": {"state": [], "hints": 1}}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_kept_under_another_name(
    content: bytes, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.parent.mkdir()
    for number in 1, 2:
        file.write_bytes(content + b" " * number)
        assert record.load() == {}
        assert f"is damaged: it is now progress.json.damaged-{number}" in capsys.readouterr().err
    record.note("a", True)
    assert record.load() == {"a": {"state": "done", "checks": 1, "finding": ""}}
    assert file.with_name("progress.json.damaged-1").read_bytes() == content + b" "
    assert file.with_name("progress.json.damaged-2").read_bytes() == content + b"  "


def test_an_answer_is_kept_and_opens_the_model_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "questions", lambda: {"01-why": "Because of the model."})
    checking.answer("01-why", "  too short ")
    assert "Because" not in capsys.readouterr().out and not record.progress().answers
    checking.answer("01-why", "It is so because\n of that.")
    assert capsys.readouterr().out.endswith("Because of the model.\n")
    assert "Question 01-why: It is so because of that." in CliRunner().invoke(command).output


def test_a_folder_that_cannot_be_written_to_does_not_stop_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(record.FILE, "/proc/no/progress.json")
    record.note("a", True)
    assert record.open_hint("a", 3) == 1


def test_the_page_lists_every_exercise_with_its_state() -> None:
    first, second = list(catalogue.exercises().values())[:2]
    for name, passed in (first.name, False), (first.name, True), (first.name, False), (second.name, False):
        record.note(name, passed)  # what is done stays done
    found = record.progress()
    assert found.points == first.points
    lines = str(found).splitlines()
    assert len(lines) == len(catalogue.exercises()) + 1
    assert first.name in lines[0]
    assert lines[0].endswith("done")
    assert lines[1].endswith("tried")
    assert lines[2].endswith("not yet")
    assert second.heading.title.partition("<")[0] in found._repr_html_()
    assert CliRunner().invoke(command).output == f"{found}\n"
    assert {each.notebook for each in record.progress("05").exercises} == {"05"}


def test_the_table_links_to_the_tasks_and_has_words_for_its_stars() -> None:
    html = record.progress("00")._repr_html_()
    assert "<a href='00_meet_the_cluster.ipynb#cell-id=exercise-my-items'>Which items are mine?</a>" in html
    assert html.count("<th scope='col'") == 6 and html.count("<th scope='row'") == 5
    assert "<span role='img' aria-label='difficulty 1 of 5' title='difficulty 1 of 5'>★☆☆☆☆</span>" in html
