"""A student's copies of the notebooks: what `labkit lab` makes, replaces and leaves alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import __version__, jupyter_server
from labkit.checks.exercise import ORIGINALS
from labkit.cli import lab
from labkit.cli.course.folders import update
from tests.conftest import run_python

ROOT = Path(__file__).parents[2]
OLD, NEW, MINE = "print('old')", "print('new')", "print('mine')"


def write(path: Path, source: str, output: str = "", tags: tuple[str, ...] = ()) -> None:
    outputs = [new_output("stream", text=output)] if output else []
    cell = new_code_cell(source, outputs=outputs, metadata={"tags": list(tags)}, id="a")
    path.parent.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=[cell]), path)


def source_and_output(path: Path) -> tuple[str, str]:
    (cell,) = nbformat.read(path, as_version=4).cells
    return cell.source, "".join(output.text for output in cell.outputs)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the two folders, after a first start with two notebooks, one of which stays as it is."""
    monkeypatch.chdir(tmp_path)
    originals, copies = Path("originals"), Path("copies")
    for name in ("01.ipynb", "02.ipynb"):
        write(originals / name, OLD, "saved\n")
    assert update(originals, copies) == ["copies: your own copies of the notebooks"]
    assert source_and_output(copies / "01.ipynb") == (OLD, "")  # without outputs
    return originals, copies


KEPT = (
    "copies/01.ipynb is kept because you have changed it, but there is a newer version. "
    "For the new version, rename your copy and start again."
)
REPLACED = "copies: replaced by newer versions: 01.ipynb"
RUN = "copies: your runs of the older versions are in 01-old.ipynb"


@pytest.mark.parametrize(
    ("copy", "original", "lines", "becomes"),
    [
        pytest.param(None, None, [], (OLD, ""), id="untouched"),
        pytest.param(None, (NEW, "new\n"), [REPLACED], (NEW, ""), id="untouched-newer"),
        pytest.param((OLD, "run\n"), None, [], (OLD, "run\n"), id="run"),
        pytest.param((OLD, "run\n"), (OLD, "other\n"), [], (OLD, "run\n"), id="run-original-run-again"),
        pytest.param((OLD, "run\n"), (NEW, "new\n"), [REPLACED, RUN], (NEW, ""), id="run-newer"),
        pytest.param((MINE, "run\n"), None, [], (MINE, "run\n"), id="changed"),
        pytest.param((MINE, "run\n"), (NEW, "new\n"), [KEPT], (MINE, "run\n"), id="changed-newer"),
        pytest.param((NEW, "run\n"), (NEW, "new\n"), [], (NEW, "run\n"), id="changed-to-the-newer"),
    ],
)
def test_a_second_start(
    folders: tuple[Path, Path],
    copy: tuple[str, str] | None,
    original: tuple[str, str] | None,
    lines: list[str],
    becomes: tuple[str, str],
) -> None:
    """Running and saving a copy does not count as a change; changing a cell does."""
    originals, copies = folders
    if copy:
        write(copies / "01.ipynb", *copy)
    if original:
        write(originals / "01.ipynb", *original)
    assert update(originals, copies) == lines
    assert source_and_output(copies / "01.ipynb") == becomes
    assert source_and_output(copies / "02.ipynb") == (OLD, "")
    again = [line for line in lines if line == KEPT]  # until the student has decided
    assert update(originals, copies) == again
    if RUN in lines:
        assert copy and source_and_output(copies / "01-old.ipynb") == copy
    names = [".origins.json", *["01-old.ipynb"] * (RUN in lines), "01.ipynb", "02.ipynb"]
    assert sorted(path.name for path in copies.iterdir()) == names


def test_notebooks_that_are_new_or_deleted_are_copied(folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    (copies / "01.ipynb").rename(copies / "mine.ipynb")
    write(originals / "03.ipynb", NEW)
    assert update(originals, copies) == ["copies: new: 01.ipynb, 03.ipynb"]
    assert (copies / "01.ipynb").exists() and (copies / "mine.ipynb").exists()


def test_the_notebook_that_was_saved_last_is_opened(folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    write(originals / "00_meet_the_cluster.ipynb", NEW)
    update(originals, copies)
    first = copies / "00_meet_the_cluster.ipynb"
    for path in copies.iterdir():
        os.utime(path, (1, 1))
    assert lab.last_used(copies) == first
    write(copies / "01.ipynb", MINE)
    assert lab.last_used(copies) == copies / "01.ipynb"


@pytest.mark.parametrize("content", ["", "[]", '{"cells": [{}]}'])
def test_a_copy_that_is_no_notebook_is_kept(folders: tuple[Path, Path], content: str) -> None:
    originals, copies = folders
    (copies / "01.ipynb").write_text(content)
    write(originals / "01.ipynb", NEW)
    assert update(originals, copies) == [KEPT]
    assert (copies / "01.ipynb").read_text() == content


def test_a_changed_tag_counts_and_metadata_of_the_editor_does_not(folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    write(copies / "01.ipynb", OLD, tags=["raises-exception"])
    notebook = nbformat.read(copies / "02.ipynb", as_version=4)
    notebook.cells[0].metadata.update(collapsed=True, scrolled=False)
    nbformat.write(notebook, copies / "02.ipynb")
    for name in ("01.ipynb", "02.ipynb"):
        write(originals / name, NEW)
    old = "copies: your runs of the older versions are in 02-old.ipynb"
    assert update(originals, copies) == ["copies: replaced by newer versions: 02.ipynb", old, KEPT]


def test_each_run_of_an_older_version_is_kept(folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    for number, name in enumerate(("01-old.ipynb", "01-old2.ipynb", "01-old3.ipynb")):
        source = f"print({number})" if number else OLD
        write(copies / "01.ipynb", source, f"mine {number}\n")
        write(originals / "01.ipynb", f"print({number + 1})", "saved\n")
        assert name in update(originals, copies)[-1]
        assert source_and_output(copies / name) == (source, f"mine {number}\n")
        assert source_and_output(copies / "01.ipynb") == (f"print({number + 1})", "")


def test_commands_that_update_the_same_copies_at_once_take_turns(tmp_path: Path) -> None:
    """Each of the commands finds or makes all copies, and none fails."""
    command = [sys.executable, "-m", "labkit", "lab", "--copy-only"]
    jobs = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    outputs = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 2, outputs
    assert sorted(filter(None, outputs)) == ["my-notebooks: your own copies of the notebooks\n"]
    assert [path for path in tmp_path.rglob("*") if "part" in path.name] == []


def test_copies_are_made_without_the_grammar_of_international_addresses(tmp_path: Path) -> None:
    """Its import takes more than a second. tests/test_jupyter_server.py tests the same for JupyterLab."""
    done = run_python("-X", "importtime", "-m", "labkit", "lab", "--copy-only", cwd=tmp_path)
    assert "nbformat" in done.stderr and f"{jupyter_server.GRAMMAR}." not in done.stderr


@pytest.mark.parametrize("record", ["", "[]", "{}"])
def test_without_its_record_no_change_is_lost(folders: tuple[Path, Path], record: str) -> None:
    originals, copies = folders
    write(copies / "01.ipynb", MINE)
    (copies / ".origins.json").write_text(record)
    assert update(originals, copies) == []
    assert source_and_output(copies / "01.ipynb") == (MINE, "")
    write(originals / "01.ipynb", NEW)
    assert update(originals, copies) == [KEPT]


def test_links_of_the_copies_lead_to_files_beside_them(tmp_path: Path) -> None:
    copies = tmp_path / "my-notebooks"
    update(ORIGINALS, copies)
    links = {
        (path, link)
        for path in [*copies.glob("*.ipynb"), *copies.rglob("*.md")]
        for link in links_of(path)
        if "://" not in link
    }
    assert [f"{path.name}: {link}" for path, link in links if not (path.parent / link).exists()] == []
    outside = [link for path, link in links if copies not in (path.parent / link).resolve().parents]
    assert outside == []
    assert {"glossary.md", "checklist.md", "train.sbatch"} <= {Path(link).name for _, link in links}


def links_of(path: Path) -> list[str]:
    """Return the links of a text; for a notebook also the relative paths in its code."""
    in_text, in_code = r"""(?:\]\(|src=["'])([^)#"']+)""", r"""["'](\.\.?/[^"']+)"""
    if path.suffix == ".md":
        return re.findall(in_text, path.read_text())
    cells = json.loads(path.read_text())["cells"]
    patterns = [in_code if cell["cell_type"] == "code" else in_text for cell in cells]
    return [
        link
        for cell, pattern in zip(cells, patterns, strict=True)
        for link in re.findall(pattern, "".join(cell["source"]))
    ]


def test_a_changed_document_is_kept_and_an_unchanged_one_replaced(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "docs").mkdir()
    cells = [
        new_markdown_cell("[a](../docs/a.md#there), [b](../docs/b.md), [outside](../outside.md)", id="a")
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "01.ipynb")
    for name in ("docs/a.md", "docs/b.md", "outside.md"):
        (tmp_path / name).write_text("old")
    copies = tmp_path / "copies"
    update(tmp_path / "notebooks", copies)
    copy = nbformat.read(copies / "01.ipynb", as_version=4)
    assert copy.metadata["labkit"] == {"version": __version__}
    (cell,) = copy.cells
    assert cell.source == "[a](docs/a.md#there), [b](docs/b.md), outside"
    (copies / "docs/a.md").write_text("mine")
    for name in ("docs/a.md", "docs/b.md"):
        (tmp_path / name).write_text("new [01](../notebooks/01.ipynb)")
    replaced, kept = update(tmp_path / "notebooks", copies)
    assert replaced == f"{copies}: replaced by newer versions: docs/b.md"
    assert kept.startswith(f"{copies / 'docs/a.md'} is kept because you have changed it")
    assert (copies / "docs/a.md").read_text() == "mine"
    assert (copies / "docs/b.md").read_text() == "new [01](../01.ipynb)"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    copies = tmp_path / "my-notebooks"
    copies.touch()  # root may write to any folder, but not to a file as if it were one
    done = run_python("-m", "labkit", "lab", code=1, cwd=tmp_path)
    assert f"could not be copied to {copies}: File exists." in done.stderr and "Starting" not in done.stdout
