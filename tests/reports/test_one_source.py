"""The figures of the reports stand in labkit/reports/figures only; all others read them from there."""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from pathlib import Path

import pytest

from labkit.reports.figures import FOLDER

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
TELLING = 4  # significant digits: a number with fewer may be another quantity


def digits(number: str) -> int:
    return len(number.replace(".", "").lstrip("0"))


@cache
def figures() -> set[float]:
    """Return the magnitudes of all figures of the tables with enough digits to tell them apart."""
    found = set()
    for path in FOLDER.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            entries = {entry.lstrip("-") for row in csv.reader(file) for entry in row}
        found |= {float(entry) for entry in entries if NUMBER.fullmatch(entry) and digits(entry) >= TELLING}
    return found


def typed(source: str) -> list[str]:
    """Return the figures of the reports that a source types."""
    long = (number for number in NUMBER.findall(source) if digits(number) >= TELLING)
    return [number for number in long if float(number) in figures()]


def code(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("source", ["t = [2.504030, 1.4]", "t = 2.50403", "n = 1277", "-0.1882"])
def test_a_typed_figure_is_found(source: str) -> None:
    assert len(typed(source)) == 1


def test_no_module_types_a_figure() -> None:
    found = {path: typed(path.read_text(encoding="utf-8")) for path in (ROOT / "labkit").rglob("*.py")}
    assert {str(path): numbers for path, numbers in found.items() if numbers} == {}


def test_no_notebook_types_a_figure() -> None:
    found = {path.name: typed(code(path)) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert found and {name: numbers for name, numbers in found.items() if numbers} == {}
