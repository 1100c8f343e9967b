"""The numbers in the guide for instructors and in the notebooks' first cells are those of the exercises."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from labkit.exercises import catalogue

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tools import course_numbers  # noqa: E402

sys.path.pop(0)

PAGE = (ROOT / "docs/instructors.md").read_text()
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
EXERCISES = catalogue.exercises()


def rows(heading: str) -> list[list[str]]:
    """Return the rows of a plan: session, notebooks, exercises in class, minutes, at home, minutes."""
    (text,) = re.findall(rf"^## {heading}.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    found = [
        line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| [\w ]+ \| \[", line)
    ]
    assert found
    return found


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_states_the_minutes_of_its_exercises(notebook: Path) -> None:
    total, minutes, count = course_numbers.times(notebook)
    assert (minutes, count) == course_numbers.of_catalogue(notebook.name[:2])[:2]
    assert total >= minutes


def test_the_numbers_of_the_guide_are_true() -> None:
    """If not: python tools/course_numbers.py."""
    assert course_numbers.with_numbers(PAGE) == PAGE


@pytest.mark.parametrize("heading", ["One session", "Six sessions", "Twelve sessions"])
def test_a_plan_has_each_exercise_once_and_in_its_notebooks_session(heading: str) -> None:
    planned = []
    for _, notebooks, in_class, _, at_home, _ in rows(heading):
        names = re.findall(r"`(\w+)`", in_class + at_home)
        assert {EXERCISES[name].notebook for name in names} <= set(re.findall(r"\[(\d\d)\]", notebooks))
        planned += names
    assert len(planned) == len(set(planned))
    if heading == "Twelve sessions":
        assert set(planned) == set(EXERCISES)
    if heading == "Six sessions":  # whole notebooks
        chosen = {EXERCISES[name].notebook for name in planned}
        assert set(planned) == {name for name, each in EXERCISES.items() if each.notebook in chosen}


@pytest.mark.parametrize(
    ("heading", "most"), [("One session", 40), ("Six sessions", 60), ("Twelve sessions", 55)]
)
def test_exercises_in_class_leave_time_for_reading(heading: str, most: int) -> None:
    assert max(int(row[3]) for row in rows(heading)) <= most
