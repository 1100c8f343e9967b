"""A notebook that hangs fails with its cell's name and leaves nothing behind; nbval alone passes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240
LIMIT_S = 5  # for the cell that hangs; connect() in the first cell may take longer

# Unwatched, since a watched communicator would end the cell by itself.
MISSED = "%%px\nfrom mpi4py import MPI\nif rank == 0:\n    MPI.COMM_WORLD.Barrier()"


def notebook_with_a_hang(path: Path, tags: list[str]) -> Path:
    cells = [
        new_code_cell(
            "from labkit.cluster import connect\nrc = connect(n=2)",
            metadata={"tags": ["nbval-ignore-output"]},
        ),
        new_code_cell(MISSED, id="the-missed-barrier", metadata={"tags": [*tags, f"timeout-{LIMIT_S}"]}),
        new_code_cell("print('never reached')"),
    ]
    nbformat.write(new_notebook(cells=cells), path)
    return path


@pytest.mark.thorough
def test_a_missed_collective_fails_and_names_its_cell(tmp_path: Path) -> None:
    """It also fails if the cell is tagged as one that raises an exception."""
    options = ["-p", "conftest", "-c", "pyproject.toml", "--rootdir=.", "-p", "no:cacheprovider"]
    runs = [  # at the same time, since each waits for its deadline
        subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, notebook],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for notebook in (
            notebook_with_a_hang(tmp_path / "hang.ipynb", []),
            notebook_with_a_hang(tmp_path / "expected.ipynb", ["raises-exception"]),
        )
    ]
    try:
        outputs = [run.communicate(timeout=DEADLINE_S)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    for name, run, output in zip(("hang", "expected"), runs, outputs, strict=True):
        assert run.returncode == 1, output
        assert f"{name}.ipynb: cell 1 (the-missed-barrier) hangs: ended after {LIMIT_S} s" in output, output
        assert "1 passed" in output, output  # connect()
        assert "2 failed" in output, output
        assert "Left behind" not in output, output
