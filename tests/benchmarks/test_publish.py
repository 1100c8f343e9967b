"""`python -m benchmarks.publish`: a table is measured and written into its page, and the figure is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import publish
from labkit.bench.pytorch import is_installed

PAGE = "# Benchmarks\n\n<!-- results -->\n\nof another day\n\n<!-- end -->\n\nThe end.\n"
COMMAND = ("One rank", "python -m benchmarks step --model lenet5 --batch 2", r"/t1 ")


@pytest.mark.skipif(not is_installed(), reason="PyTorch is not installed")
def test_a_table_is_written_into_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "DOCS", tmp_path)
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE)
    rows = publish.write("benchmarks", [COMMAND])
    lines = page.read_text().splitlines()
    assert "of another day" not in lines and lines[-1] == "The end."
    shown = [row["against"] for row in rows if row["case"] == "lenet5/b2/t1"]
    table = [line.split(" | ") for line in lines if line.startswith("| lenet5/")]
    assert [cells[2] for cells in table] == shown and "pytorch" in shown
    assert any(line.startswith("Measured on ") and "torch 2" in line for line in lines)
    page.write_text("# A page without a place for them\n")
    with pytest.raises(SystemExit, match="has no place for the results"):
        publish.write("benchmarks", [])


def test_a_command_that_fails_ends_the_measurement() -> None:
    with pytest.raises(SystemExit, match="ended with exit code 2"):
        publish.rows_of("One rank", "python -m benchmarks step --no-such-option", "")


def test_the_figure_has_a_curve_for_each_link() -> None:
    def row(case: str, ours: float, theirs: float) -> publish.Row:
        return {"case": f"vgg11/strong/{case}", "ours": ours, "against": "linear", "theirs": theirs}

    rows = [row("2x128/overlap/hosts", 90.0, 100.0)]
    for suffix, *_ in publish.CURVES:
        rows += [row(f"{p}x{256 // p}/{suffix}/predicted", 40.0 * p, 50.0 * p) for p in (2, 4, 8)]
    (axes,) = publish.draw(rows).axes
    linear, *curves, measured = axes.lines
    assert list(linear.get_ydata()) == [100.0, 200.0, 400.0]
    assert [list(curve.get_ydata()) for curve in curves] == [[80.0, 160.0, 320.0]] * len(publish.CURVES)
    assert list(measured.get_xdata()) == [1, 2]
