"""The `%%px` cells of a notebook form a program for mpiexec, and saved notebooks are tidy."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from labkit.cli.export import command
from tests.check_jobs import checks_in, run_checks
from tests.conftest import DEADLINE_S, thorough

NOTEBOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))
SHORT = "00_meet_the_cluster", "03_sharding"
RANKS = 3  # nbval runs the same cells on four
CHECKS = """\
import runpy
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
"""
CHECK = "def check_{0}(comm): runpy.run_path({1!r}, run_name='__main__'), plt.close('all')\n"
PAGE_COLUMNS = 100  # at 1366 pixels
COLUMN_GAP = re.compile(r"\S {2,}(?=\S)")


@pytest.mark.parametrize(
    "path",
    [path if path.stem in SHORT else thorough(path) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_the_exported_cells_run_under_mpiexec(path: Path, tmp_path: Path) -> None:
    program = str(tmp_path / f"{path.stem}.py")
    done = CliRunner().invoke(command, [str(path), "--out", program])
    assert done.exit_code == 0, done.output
    (tmp_path / "checks.py").write_text(CHECKS + CHECK.format(path.stem, program))
    for fault in run_checks(RANKS, checks_in([tmp_path / "checks.py"]), DEADLINE_S).values():
        pytest.fail(fault, pytrace=False)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_as_make_notebooks_saves_it(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags", "jupyter"}, cell.id
        if cell.cell_type == "code":
            assert cell.execution_count is not None, f"{cell.id} was not run: make notebooks"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_table_fits_the_page(path: Path) -> None:
    """JupyterLab breaks longer lines, and a table is then hard to read. Text may break."""
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            for line in output.get("text", "").splitlines():
                is_row = len(COLUMN_GAP.findall(line)) > 1
                assert not is_row or len(line) <= PAGE_COLUMNS, f"{cell.id}: {line}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_relative_links_have_a_target(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", cell.source):
                assert (path.parent / target).exists(), f"{cell.id}: {target}"
