"""Cells whose code is folded only draw: nothing that they print, assert or define is hidden from a reader."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LONGEST_SHOWN = 7  # lines of a cell that only draws
SAYS_MORE = re.compile(r"print\(|^assert|^def ", re.MULTILINE)
TEACHING = {"slope"}  # the figure's numbers are the idea


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_that_only_draws_is_folded_above_its_figure(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        draws = any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
        if not draws:
            continue
        is_folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        is_long = len(cell.source.splitlines()) > LONGEST_SHOWN
        only_draws = is_long and not SAYS_MORE.search(cell.source) and cell.id not in TEACHING
        assert is_folded == only_draws, cell.id
