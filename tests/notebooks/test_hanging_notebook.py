"""A notebook that hangs fails, with the cell's name, and leaves nothing behind. (nbval alone passes it.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[2]
DEADLINE_S = 150

# Not watched: the watched communicator ends the cell by itself.
MISSED = "%%px\nfrom mpi4py import MPI\nif rank == 0:\n    MPI.COMM_WORLD.Barrier()"


@pytest.mark.parametrize("tags", [[], ["raises-exception"]], ids=str)
def test_a_missed_collective_fails_and_names_its_cell(tmp_path: Path, tags: list[str]) -> None:
    cells = [
        new_code_cell(
            "from labkit.cluster import connect\nrc = connect(n=2)",
            metadata={"tags": ["nbval-ignore-output"]},
        ),
        new_code_cell(MISSED, id="the-missed-barrier", metadata={"tags": tags}),
        new_code_cell("print('never reached')"),
    ]
    notebook = tmp_path / "hang.ipynb"
    nbformat.write(new_notebook(cells=cells), notebook)
    options = ["-p", "conftest", "-c", "pyproject.toml", "--rootdir=.", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--nbval-cell-timeout=15", str(notebook)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 1, result.stdout
    assert "hang.ipynb: cell 1 (the-missed-barrier) hangs: ended after 15 s" in result.stdout
    assert "1 passed" in result.stdout  # connect()
    assert "2 failed" in result.stdout
    assert "Left behind" not in result.stdout
