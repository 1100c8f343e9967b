"""What pages and the Makefile name in tools/ runs, on small inputs; other tests run the rest."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from labkit.schedules import ALLREDUCE
from mpiwatch.processes import LINUX
from tests.conftest import run_python

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tools"
# These need an index of packages; `.ci/run` and a weekly workflow call them.
WITH_PACKAGES = {"make_book", "make_lock"}
MEASURE_S = 600  # for one student on a busy machine


def test_each_tool_that_a_page_or_the_makefile_names_has_a_test() -> None:
    pages = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("mpiwatch/**/*.md")]
    named = {name for page in pages for name in re.findall(r"tools/(\w+)\.py", page.read_text())}
    assert named <= {path.stem for path in TOOLS.glob("*.py")}
    tests = "\n".join(path.read_text() for path in ROOT.glob("tests/**/*.py"))
    assert {name for name in named - WITH_PACKAGES if not re.search(rf"\b{name}\b", tests)} == set()


def test_the_numbers_of_the_course_are_written_into_its_pages(tmp_path: Path) -> None:
    """The pages are true (tests/test_course.py), so nothing but a wrong number changes."""
    for name in "tools", "notebooks", "docs":
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in "README.md", "CHANGELOG.md":
        shutil.copy(ROOT / name, tmp_path)
    page = tmp_path / "README.md"
    page.write_text(re.sub(r"(\d+) functions", "0 functions", page.read_text()))
    said = run_python(tmp_path / "tools/course_numbers.py", cwd=tmp_path).stdout
    for name in "README.md", "CHANGELOG.md", "docs/instructors.md":
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), name
    assert [path.stem for path in ROOT.glob("notebooks/*.ipynb") if path.stem not in said] == []


@pytest.mark.clusters
def test_the_moving_picture_has_the_rounds_of_a_ring_and_a_hang(tmp_path: Path) -> None:
    said = run_python(TOOLS / "make_picture.py", tmp_path / "lab.gif", timeout=MEASURE_S).stdout
    with Image.open(tmp_path / "lab.gif") as picture:
        frames = picture.n_frames
    assert f"{frames} frames" in said
    moves = 6  # frames of a round, and one for its end
    assert frames > (moves + 1) * len(list(ALLREDUCE["ring"](4)))
    assert [path.name for path in tmp_path.iterdir()] == ["lab.gif"]


@pytest.mark.clusters
@pytest.mark.skipif(not LINUX, reason="it measures a Linux server")
def test_what_a_student_needs_of_a_server_is_measured() -> None:
    done = run_python(TOOLS / "measure_students.py", "1", "-n", "2", "--idle", "1", timeout=MEASURE_S)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    at = next(number for number, row in enumerate(rows) if row[0] == "Students")
    (_, *parts_of_one), (head, values) = rows[:at], rows[at:]
    parts = {name: list(map(float, numbers)) for name, *numbers in parts_of_one}
    for name in "JupyterLab server", "kernel", "controller", "engines", "all":
        processes, pss_mb, *_ = parts[name]
        assert processes >= 1 and pss_mb > 1, done.stdout
    assert parts["engines"][0] == 2
    measured = dict(zip(head, map(float, values), strict=True))
    assert measured.pop("Students") == 1
    assert measured["processes"] == parts["all"][0]
    for name, value in measured.items():
        assert value > 0 or name in ("less available, GB", "CPU idle, cores"), name
