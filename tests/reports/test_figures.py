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


def test_every_table_has_a_source() -> None:
    sources = (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    assert len(reports.TABLES) == 10
    assert [table for table in reports.TABLES if f"`{table}.csv`" not in sources] == []


def test_columns_have_types_and_rows_are_selected_by_them() -> None:
    kinds = {name: column.dtype.kind for name, column in reports.read("c_ranks").items()}
    assert kinds["set_up"] == "U" and kinds["rank"] == kinds["test_correct"] == "i" and kinds["time_s"] == "f"
    assert np.isnan(reports.read("e_runs")["loss_100"]).any()
    chosen = reports.read("d_losses", algorithm="allgather", rank=1)
    assert set(chosen["algorithm"]) == {"allgather"} and set(chosen["rank"]) == {1}
    assert len(chosen["loss"]) == 3 and len(reports.read("c_ranks", set_up="4")["rank"]) == 0
    with pytest.raises(ValueError, match=r"expected one of the tables a_epochs, .*got 'f_runs'"):
        reports.read("f_runs")


def test_the_checklist_is_a_table_with_one_line_for_each_item() -> None:
    head, *lines = reports.checklist().splitlines()
    assert head.split()[-4:] == ["A", "C", "D", "E"]
    assert [line[:40].strip() for line in lines] == reports.read("checklist")["item"].tolist()
    assert all(set(line[40:].split()) <= set("●◐○–") for line in lines)


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


def test_no_module_and_no_notebook_types_a_figure() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "labkit").rglob("*.py")}
    sources |= {path: code(path) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert typed("t = [2.504030, 1.4]") == ["2.504030"]
    assert {path: typed(source) for path, source in sources.items() if typed(source)} == {}


def test_a_number_in_a_text_is_told_from_one_that_no_report_prints() -> None:
    correct = int(reports.read("d_runs")["test_correct"][0])
    for report, text in ("d", f"{correct} images"), ("d", f"{reports.TEST_IMAGES - correct} wrong"):
        assert reports.prints(report, text)
    seconds = reports.read("c_ranks")["time_s"][0]
    assert reports.prints("c", f"{seconds:.2f} s") and not reports.prints("c", f"{seconds + 0.3:.4f} s")
    assert not reports.prints("a", "rank 1 in epoch 2") and not reports.prints("a", "none")
