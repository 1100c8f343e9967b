"""The figures of the reports are complete, and hold what the reports print."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import reports
from labkit.reports.figures import FOLDER

# Each table's rows, and the columns in which the report leaves something out.
SHAPES = {
    "a_epochs": (40, {"grad_W_mean", "grad_b_mean", "loss"}),
    "a_saved_contributions": (1, set()),
    "checklist": (25, set()),
    "c_ranks": (13, set()),
    "c_shares": (4, {"communication_percent"}),
    "d_losses": (12, set()),
    "d_runs": (4, set()),
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
