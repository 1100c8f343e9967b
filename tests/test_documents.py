"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_links_exist(document: Path) -> None:
    text = document.read_text()
    paths = re.findall(r"`((?:labkit|tests|tools|cluster_profiles|notebooks)/[\w./*-]*)`", text)
    missing = [path for path in paths if not list(ROOT.glob(path.rstrip("/")))]
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    missing += [link for link in links if not (document.parent / link).exists()]
    assert missing == []


def test_the_architecture_page_lists_every_room() -> None:
    listed = re.findall(
        r"^\| `labkit/([\w/]+)` \|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
    )
    rooms = {
        str(path.parent.relative_to(ROOT / "labkit"))
        for path in (ROOT / "labkit").glob("*/**/__init__.py")
        if path.parent != ROOT / "labkit/nn/ops"  # a part of nn's one subject
    }
    assert sorted(listed) == sorted(rooms)


def test_the_glossary_explains_every_algorithm() -> None:
    from labkit.schedules import ALLREDUCE  # noqa: PLC0415

    glossary = (ROOT / "docs/glossary.md").read_text()
    assert [
        name for name in (*ALLREDUCE, "mpi", "allgather", "shared-memory") if f"`{name}`" not in glossary
    ] == []


def test_the_readmes_exercises_are_all() -> None:
    from labkit.exercises import catalogue  # noqa: PLC0415

    counts = re.findall(r"(\d+) functions", (ROOT / "README.md").read_text())
    assert set(counts) == {str(len(catalogue.exercises()))}


def test_the_pages_schedule_is_labkits() -> None:
    from labkit import schedules  # noqa: PLC0415

    page = (ROOT / "docs/collectives.md").read_text()
    code, use = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    for p in (1, 2, 5, 8):
        assert names["ring_allgather"](p) == schedules.ring_allgather(p)
    exec(use, names)
