"""The figures of the reports are complete, hold what the reports print, and stand in no other place."""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from labkit import reports
from labkit.reports import FOLDER

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
TELLING = 4  # significant digits: a number with fewer may be another quantity


# Each table's rows, and the columns in which the report leaves something out.
SHAPES = {
    "a_epochs": (40, {"grad_W_mean", "grad_b_mean", "loss"}),
    "checklist": (25, set()),
    "c_ranks": (13, set()),
    "c_shares": (4, {"communication_percent"}),
    "d_losses": (12, set()),
    "d_runs": (4, set()),
    "e_allreduce_losses": (5, set()),
    "e_ring_last": (4, set()),
    "e_ring_losses": (79, {"loss"}),
    "e_runs": (2, {"loss_100", "accuracy_1_percent"}),
}


def test_every_table_has_a_source() -> None:
    sources = (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    assert set(reports.TABLES) == set(SHAPES)
    assert [table for table in reports.TABLES if f"`{table}.csv`" not in sources] == []


@pytest.mark.parametrize("table", reports.TABLES)
def test_tables_are_whole(table: str) -> None:
    rows, incomplete = SHAPES[table]
    columns = reports.read(table)
    assert {len(column) for column in columns.values()} == {rows}
    for name, column in columns.items():
        has_gaps = bool(column.dtype.kind == "f" and np.isnan(column).any())
        assert has_gaps == (name in incomplete), name


def test_columns_have_types() -> None:
    kinds = {name: column.dtype.kind for name, column in reports.read("c_ranks").items()}
    assert kinds["set_up"] == "U" and kinds["rank"] == kinds["test_correct"] == "i" and kinds["time_s"] == "f"


def test_rows_are_selected_by_their_columns() -> None:
    chosen = reports.read("d_losses", algorithm="allgather", rank=1)
    assert set(chosen["algorithm"]) == {"allgather"} and set(chosen["rank"]) == {1}
    assert len(chosen["loss"]) == 3 and len(reports.read("c_ranks", set_up="4")["rank"]) == 0


def test_the_checklist_is_a_table_with_one_line_for_each_item() -> None:
    head, *lines = reports.checklist().splitlines()
    assert head.split()[-4:] == ["A", "C", "D", "E"]
    assert [line[:40].strip() for line in lines] == reports.read("checklist")["item"].tolist()
    assert all(set(line[40:].split()) <= set("●◐○–") for line in lines)


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of the tables a_epochs, .*got 'f_runs'"):
        reports.read("f_runs")


def test_contributions_of_report_a_follow_from_its_gradients() -> None:
    """A slip of a digit in the table would break this: |g_rank| / |sum of g|, to the printed digits."""
    a = reports.read("a_epochs")
    for epoch in range(4, 11):  # all four ranks' gradients are printed
        chosen = a["epoch"] == epoch
        g = a["grad_b_mean"][chosen]
        assert np.allclose(100 * abs(g) / abs(g.sum()), a["contribution_b_percent"][chosen], atol=0.02)


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
