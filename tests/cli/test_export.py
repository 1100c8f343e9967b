"""`labkit export`: which cells of a notebook become the program, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner, Result
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.cli.export import command
from tests.conftest import run_python


def exported(folder: Path, *cells: nbformat.NotebookNode) -> Result:
    """Export a notebook of these cells to folder/program.py."""
    nbformat.write(new_notebook(cells=list(cells)), folder / "lesson.ipynb")
    return CliRunner().invoke(command, [f"{folder}/lesson.ipynb", "--out", f"{folder}/program.py"])


def test_cells_that_run_on_all_ranks_become_the_program(tmp_path: Path) -> None:
    done = exported(
        tmp_path,
        new_code_cell("rc = connect(n=4)"),
        new_markdown_cell("# The lesson\nText.\n```sh\n# a comment\n```\n## First part"),
        new_code_cell("%%px\nprint('on all ranks', np.sum([rank, size]))"),
        new_code_cell("%%px --local\n%matplotlib inline\nprint('local too')"),
        new_code_cell("%%replay\nprint('watched')"),
        new_code_cell("%%px --targets 0\nprint('only rank 0')"),
        new_code_cell("%%px\nprint('pushed')", metadata={"tags": ["notebook-only"]}),
        new_code_cell("%%px\ntext = '''\n%d files\n''' % 3"),
        new_code_cell(""),
    )
    assert done.exit_code == 0, done.output
    text = (tmp_path / "program.py").read_text()
    assert "kernel (1), %%px cells that need the kernel (2)" in text
    assert "\n# # The lesson\n# ## First part\n" in text
    assert "# left out: %matplotlib inline" in text
    assert "\n%d files\n" in text
    assert not any(words in text for words in ("connect(n", "a comment", "only rank 0", "pushed"))
    assert run_python(tmp_path / "program.py").stdout == "on all ranks 1\nlocal too\nwatched\n"


def test_functions_of_exercises_are_in_the_program_wherever_they_were_written(tmp_path: Path) -> None:
    done = exported(
        tmp_path,
        new_code_cell("def double(x):\n    return 2 * x", metadata={"tags": ["exercise"]}),
        new_code_cell("assert check and hint", metadata={"tags": ["check"]}),
        new_code_cell("print('only in the kernel')"),
        new_code_cell("%%px\nprint(double(21))"),
    )
    assert done.exit_code == 0, done.output
    assert "kernel (1)" in (tmp_path / "program.py").read_text()
    assert run_python(tmp_path / "program.py").stdout == "42\n"


def test_what_cannot_be_exported_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for cells, words in (
        ([new_code_cell("x = 1")], "lesson.ipynb has no %%px cells that run on all ranks"),
        ([new_markdown_cell("Text"), new_code_cell("%%px\nx = = 1")], "cell 2"),
    ):
        done = exported(tmp_path, *cells)
        assert done.exit_code == 2
        assert words in done.output
        assert len(done.output.splitlines()) == 1
        assert not (tmp_path / "program.py").exists()


@pytest.mark.parametrize(
    "content", ["print(1)\n", "{}", '{"cells": 1}', "[1]", '{"nbformat": 4, "cells": [{}]}']
)
def test_a_file_that_is_no_notebook(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    done = CliRunner().invoke(command, [f"{tmp_path}/file", "--out", f"{tmp_path}/program.py"])
    assert done.exit_code == 2, done.exception
    assert "is not a notebook" in done.output


def test_only_an_exported_program_is_replaced(tmp_path: Path) -> None:
    cell = new_code_cell("%%px\nprint(rank)")
    (tmp_path / "program.py").write_text("mine")
    done = exported(tmp_path, cell)
    assert done.exit_code == 2
    assert "choose another --out" in done.output
    assert (tmp_path / "program.py").read_text() == "mine"
    (tmp_path / "program.py").unlink()
    assert exported(tmp_path, cell).exit_code == 0
    assert exported(tmp_path, cell).exit_code == 0
