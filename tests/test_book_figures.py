"""The book: its figures have alt texts, taken from their captions, and its API pages have entries."""

from __future__ import annotations

import importlib.util
import shutil
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from tests.conftest import run_python

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("book_figures", ROOT / "tools" / "book_figures.py")
assert spec is not None and spec.loader is not None
book_figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(book_figures)


@pytest.mark.parametrize(
    "caption, expected",
    [
        ("*The ring is fast. The root is slow.* More.", "The ring is fast."),
        (
            "*At 1.5 times\nthe rate, all learn:\nsee rank 3.*",
            "At 1.5 times the rate, all learn: see rank 3.",
        ),
        ("*`run` uses [a ring](../docs/glossary.md#ring) of $p$ ranks.*", "run uses a ring of p ranks."),
        ("**Bold.** Not a caption.", None),
        ("Text.", None),
    ],
)
def test_the_first_sentence_of_a_caption(caption: str, expected: str | None) -> None:
    assert book_figures.alt_text(caption) == expected


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem.partition("_")[0]
)
def test_figures_above_text_have_an_alt_text(path: Path, tmp_path: Path) -> None:
    copy = shutil.copy(path, tmp_path)
    book_figures.describe(Path(copy))
    cells = nbformat.read(copy, as_version=4).cells
    figures = 0
    for cell, below in pairwise(cells):
        if below.cell_type == "markdown" and any(
            "image/png" in o.get("data", {}) for o in cell.get("outputs", [])
        ):
            figures += 1
            assert cell.metadata.get("alt"), f"no caption below {cell.id}: {below.source[:60]}"
    assert figures or "image/png" not in path.read_text()


def test_each_room_has_entries_on_its_api_page() -> None:
    program = (
        "import book_api; print([room for room, text in book_api.pages().items() if '\\n## ' not in text])"
    )
    done = run_python("-c", program, cwd=ROOT / "tools")  # a process of its own, as it loads MPI
    assert done.stdout == "['index']\n"
