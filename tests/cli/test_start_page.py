"""The page that `labkit lab` opens, as a text, and when it is written."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from labkit.checks.exercise import ORIGINALS
from labkit.cli import lab
from labkit.exercises import catalogue, record, start_page
from labkit.exercises.record import Progress
from tools import course_numbers

NOON = datetime(2026, 1, 2, 12, 0)
EXERCISES = [*catalogue.exercises().values()]


def page(*done: str) -> str:
    return start_page.text(Progress(EXERCISES, dict.fromkeys(done, "done"), {}), NOON)


def names(*notebooks: str, core: bool = False) -> list[str]:
    chosen = [each for each in EXERCISES if each.notebook in notebooks]
    return [each.name for each in chosen if each.heading.on_core_path or not core]


class EndsAfterACheck:
    """What `labkit lab` asks of its JupyterLab: this one runs until a check has been noted."""

    def __init__(self) -> None:
        self.is_noted = False

    def is_running(self) -> bool:
        if self.is_noted:
            return False
        record.note("my_items", passed=True)
        self.is_noted = True
        return True


@pytest.mark.parametrize("folder", [lab.COPIES, Path("mine")], ids=str)
def test_only_the_page_of_the_copies_is_written_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of that name in a folder of the student's own is the student's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    monkeypatch.setattr(lab, "END_POLL_S", 0.01)
    folder.mkdir()
    page = folder / start_page.NAME
    page.write_text("Where I start.")
    lab._wait_for_an_end(EndsAfterACheck(), folder)  # type: ignore[arg-type]
    is_mine = page.read_text() == "Where I start."
    assert is_mine == (folder != lab.COPIES)


def test_each_notebook_is_on_the_page_with_its_minutes_on_the_core_path() -> None:
    core, optional = page().split("## Optional notebooks")
    for part, numbers in (core, start_page.CORE), (optional, None):
        links = re.findall(r"^(?:\d\.|-) \[(\w+) · .*?\]\((.*?)\).* about (\d+) minutes", part, re.MULTILINE)
        assert numbers is None or [number for number, *_ in links] == [*numbers]
        for number, file, minutes in links:
            assert (ORIGINALS / file).exists()
            assert numbers is None or int(minutes) == course_numbers.core_minutes(number)
    assert page().count(" · about ") == len([*ORIGINALS.glob("*.ipynb")])
    assert [*start_page.CORE] == course_numbers.CORE


def test_the_page_says_where_to_begin_and_to_go_on() -> None:
    assert "**Begin here: [00 · Meet the cluster](00_meet_the_cluster.ipynb).**" in page()
    said = page(*names("00"))
    following = next(each for each in EXERCISES if each.notebook == "01")
    assert f"**Next: [{following.heading.title}]({following.heading.link})**" in said
    assert re.search(r"^1\. \[00 .*\*\*✔ done\*\* .* 5 of 5 exercises<br>", said, re.MULTILINE), said
    assert "**… begun**" in page("my_items") and "Next: [A neighbour exchange" in page("my_items")
    assert "**The core path is done.**" in page(*names(*start_page.CORE, core=True))


def test_the_short_path_is_that_of_the_guide() -> None:
    (line,) = (line for line in page().splitlines() if line.startswith("**Only two hours?**"))
    (session,) = course_numbers.sessions((ORIGINALS.parent / "docs/instructors.md").read_text(), "two")
    assert {number: sections[sections[0] == "0" :] for number, sections in session.parts.items()} == {
        "00": ["1", "3", "4", "5"],
        "01": ["7", "8"],
    }
    assert "sections 1, 3, 4 and 5 of [00 · " in line and "sections 7 and 8" in line
    assert re.findall(r"\]\((\d\d)_", line) == [*session.parts]


def test_links_lead_to_cells_with_the_tasks() -> None:
    for exercise in EXERCISES:
        file, _, cell = exercise.heading.link.partition("#cell-id=")
        assert f'"id": "{cell}"' in (ORIGINALS / file).read_text()
