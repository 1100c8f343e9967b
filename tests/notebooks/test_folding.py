"""Cells whose code is folded set up, draw or print: none defines or asserts what a reader should see."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LONGEST_SHOWN = 7  # lines of a cell that only draws
PRINTS = re.compile(r"print\(")
SAYS_MORE = re.compile(r"^assert|^def ", re.MULTILINE)
TEACHING = {"slope"}  # the figure's numbers are the idea


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_that_only_draws_is_folded_above_its_figure(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        is_folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        draws = any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
        says_more = SAYS_MORE.search(cell.source) is not None
        is_long = len(cell.source.splitlines()) > LONGEST_SHOWN
        assert not (is_folded and says_more), cell.id
        only_draws = is_long and not says_more and not PRINTS.search(cell.source) and cell.id not in TEACHING
        if draws and not is_folded:
            assert not only_draws, cell.id
