"""Errors that a notebook shows on purpose, where papermill runs it: what is an error in its output then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.cluster_fixtures import DEADLINE_S, World

pytestmark = pytest.mark.clusters

# What papermill does: run all cells by nbclient, stop at an error that is not meant, save, look for errors.
LIKE_PAPERMILL = """\
import sys
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
notebook = nbformat.read(sys.argv[1], 4)
try:
    NotebookClient(notebook, kernel_name="python3").execute()
except CellExecutionError:
    pass
nbformat.write(notebook, sys.argv[2])
outputs = [output for cell in notebook.cells for output in cell.outputs]
sys.exit(any(output.output_type == "error" for output in outputs))
"""
CELLS = (
    "from labkit.cluster import connect\nrc = connect(n=2, deadline_s=2)",
    ("%%px\nif rank == 0:\n    comm.Barrier()",),  # a hang that is meant
    ("%px 1 / 0",),
    ("print(nowhere)",),
    "%px print(comm.allreduce(1))",
)


def run(name: str, world: World, folder: Path, *more: str) -> tuple[int, list[Any]]:
    """Run a notebook of these cells by a program of this name; return its exit status and all outputs.

    Cells in a tuple have the tag `raises-exception`.
    """
    notebook = nbformat.v4.new_notebook()
    for cell in (*CELLS, *more):
        tags = {"tags": ["raises-exception"]} if isinstance(cell, tuple) else {}
        notebook.cells.append(nbformat.v4.new_code_cell("".join(cell), metadata=tags))
    nbformat.write(notebook, folder / "in.ipynb")
    (folder / name).write_text(LIKE_PAPERMILL)
    done = subprocess.run(
        [sys.executable, folder / name, "in.ipynb", "out.ipynb"],
        cwd=folder,
        env=world.env,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    cells = nbformat.read(folder / "out.ipynb", as_version=4).cells
    return done.returncode, [output for cell in cells for output in cell.outputs]


def text_of(outputs: list[Any], stream: str) -> str:
    return "".join(output.text for output in outputs if output.get("name") == stream)


def test_papermill_ends_well_where_all_cells_ran(world: World, tmp_path: Path) -> None:
    status, outputs = run("papermill", world, tmp_path)
    assert [output.evalue for output in outputs if output.output_type == "error"] == []
    assert status == 0
    printed = text_of(outputs, "stderr")
    assert "HangError" in printed and "rank 1" in printed
    assert "ZeroDivisionError on ranks 0, 1: division by zero" in printed
    assert "NameError: name 'nowhere' is not defined" in printed
    assert text_of(outputs, "stdout").endswith("[ranks 0, 1] 2\n")


def test_an_error_that_is_not_meant_stays_one_and_ends_the_run(world: World, tmp_path: Path) -> None:
    status, outputs = run("papermill", world, tmp_path, "%px [][rank]", "print('not run')")
    assert [output.ename for output in outputs if output.output_type == "error"] == ["CellFailed"]
    assert status == 1 and "not run" not in text_of(outputs, "stdout")


def test_other_programs_get_errors(world: World, tmp_path: Path) -> None:
    status, outputs = run("nbconvert", world, tmp_path)
    names = [output.ename for output in outputs if output.output_type == "error"]
    assert names == ["CellHung", "CellFailed", "NameError"] and status == 1
