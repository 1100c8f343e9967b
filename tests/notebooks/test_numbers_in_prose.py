"""Every measured number in a notebook's prose stands in a cell, as code or as output."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
# A number with a unit, or with decimals. "exercise 3.1" and sizes such as "8 × 8" are neither.
UNITS = r"(?:%|times\b|ms\b|µs\b|s\b|seconds\b|[kMG]B\b|[KMG]iB\b|bytes\b|[kmgMG]bit\b)"
NUMBER = re.compile(rf"(?<![\w.$\\{{-])(?:(\d[\d,]*(?:\.\d+)?)\s?(?={UNITS})|(\d+\.\d+)(?![\w.]*\d))")
NOT_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|^#.*$|^★.*$|[Ee]xercises? \d\.\d",
    re.DOTALL | re.MULTILINE,
)
# What no cell of the notebook can show.
GIVEN = {
    "04": {"1.7", "98.29", "98.05"},  # report D's figures
    "07": {"30", "60"},  # a question's made-up times
    "09": {"50"},  # a question's made-up efficiency
}


def numbers_of(notebook: nbformat.NotebookNode) -> set[str]:
    """Return all numbers in code and outputs, without thousands separators."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            parts.append(cell.source)
            for output in cell.outputs:
                parts += [output.get("text", ""), *output.get("traceback", [])]
                parts += [str(output.get("data", {}).get(kind, "")) for kind in ("text/plain", "text/html")]
    return {re.sub("[,_]", "", found) for found in re.findall(r"\d[\d,_]*(?:\.\d+)?", "\n".join(parts))}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_numbers_in_prose_stand_in_a_cell(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    known = numbers_of(notebook) | GIVEN.get(path.name[:2], set())
    missing = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = NOT_PROSE.sub(" ", cell.source)
            for found in NUMBER.finditer(prose):
                number = (found[1] or found[2]).replace(",", "")
                if number not in known:
                    context = " ".join(prose[max(0, found.start() - 60) : found.end() + 20].split())
                    missing.append(f"{cell.id}: … {context} …")
    assert missing == []
