"""The five students' reports: the figures that they print, as arrays; and generated reports. No MPI.

figures/SOURCES.md says where each figure comes from. A generated report has a planted fault.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from labkit.reports.generated import KINDS, Unseen, unseen

FOLDER = Path(__file__).with_name("figures")
NOT_MEASURED = {"rank", "epoch", "iteration", "set_up", "algorithm", "place"}  # columns that only name a row
TEST_IMAGES = 10_000  # of reports C and D
LEAST_DIGITS = 2  # of a number that tells something: ranks and epochs have one
TABLES = tuple(sorted(path.stem for path in FOLDER.glob("*.csv")))


def read(table: str, **where: object) -> dict[str, np.ndarray]:
    """Return the columns of a table by name, each of shape (rows,).

    Columns are texts, integers, or float64 with nan where the report prints nothing. `where` selects rows by
    their columns: `read("c_ranks", set_up="2a")`. Raise ValueError for an unknown table.
    """
    if table not in TABLES:
        raise ValueError(f"expected one of the tables {', '.join(TABLES)}, got {table!r}")
    with (FOLDER / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    columns = {name: _array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    wanted = [all(columns[name][i] == value for name, value in where.items()) for i in range(len(rows))]
    return {name: column[wanted] for name, column in columns.items()}


def prints(report: str, text: str) -> bool:
    """Tell whether a text holds a number that a report prints: to the digits given, without its sign.

    `report` is its letter, such as "a". Of test images, also the wrong ones and the percentage count.
    """
    values = []
    for table in TABLES:
        if table.startswith(f"{report}_"):
            for name, column in read(table).items():
                if name not in NOT_MEASURED:
                    values += column[np.isfinite(column)].tolist()
                if name == "test_correct":
                    values += (TEST_IMAGES - column).tolist() + (column / (TEST_IMAGES / 100)).tolist()
    numbers = re.findall(r"\d+(?:\.\d+)?", text)
    return any(
        sum(map(str.isdigit, number)) >= LEAST_DIGITS
        and any(f"{abs(value):.{len(number.partition('.')[2])}f}" == number for value in values)
        for number in numbers
    )


def checklist() -> str:
    """Return, as a text, which items of the checklist each report states."""
    signs = {"yes": "●", "partly": "◐", "no": "○", "–": "–"}
    stated = read("checklist")
    items = stated.pop("item")
    lines = [f"{'● stated (not: true), ◐ partly, ○ not':40}{'  '.join(stated)}"]
    for item, *by_report in zip(items, *stated.values(), strict=True):
        lines.append(f"{item:40}{'  '.join(signs[answer] for answer in by_report)}")
    return "\n".join(lines)


def _array(column: tuple[str, ...]) -> np.ndarray:
    for dtype in np.int64, np.float64:
        try:
            return np.array([text or "nan" for text in column], dtype)
        except ValueError:  # this column is of another type
            pass
    return np.array(column)
