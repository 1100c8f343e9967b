"""The five students' reports: the figures that they print, as arrays; and generated reports. No MPI.

figures/SOURCES.md says where each figure comes from. A generated report has a planted fault.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from labkit.reports.generated import KINDS, Unseen, unseen

FOLDER = Path(__file__).with_name("figures")
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
