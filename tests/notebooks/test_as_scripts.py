"""The `%%px` cells of a notebook form a program for mpiexec, and saved notebooks are tidy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from labkit.cli.export import command

NOTEBOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))
PAGE_COLUMNS = 100  # at 1366 pixels
COLUMN_GAP = re.compile(r"\S {2,}(?=\S)")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_exported_cells_run_under_mpiexec(path: Path, tmp_path: Path, run: Callable) -> None:
    """On three ranks: nbval runs the same cells on four."""
    p = 3
    script = tmp_path / "program.py"
    done = CliRunner().invoke(command, [str(path), "--out", str(script)])
    assert done.exit_code == 0, done.output
    with script.open("a") as file:
        file.write("\nprint('reached the end', flush=True)\n")
    result = run(p, script)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("reached the end") == p


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
