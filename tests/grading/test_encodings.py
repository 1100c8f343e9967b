"""A submission that is not UTF-8 is not graded: its student is named, and the others are graded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell

from tests.grading.course import Course

pytestmark = pytest.mark.grading

QUICK = "11_on_call"  # has few exercises
READABLE, UNREADABLE = "utf-8", ["latin-1", "utf-16", "utf-8-sig"]


def test_a_submission_that_is_not_utf_8_is_not_graded(tmp_path: Path) -> None:
    course = Course(tmp_path / "course")
    notebook = course.released(QUICK)
    notebook.cells.append(new_code_cell("# größer"))
    for encoding in [READABLE, *UNREADABLE]:
        text = json.dumps(notebook, ensure_ascii=False)
        course.submission(encoding, QUICK).write_bytes(text.encode(encoding, "replace"))
    log = course.grade(QUICK, code=1)
    assert (course.folder / "autograded" / READABLE / QUICK / f"{QUICK}.ipynb").exists()
    for encoding in UNREADABLE:
        assert f"There was an error processing assignment '{QUICK}' for student '{encoding}'" in log
        assert not list((course.folder / "autograded" / encoding).rglob("*.ipynb"))
    assert f"for student '{READABLE}'" not in log
