"""`%%px` cells in the page: while they run, when they fail, and when they are stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

from tests.browser.jupyterlab import CONNECT, Lab, Notebook, a_page, open_notebook
from tests.cluster_fixtures import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

TABLE = "print('  loss  accuracy')\nprint('  0.50      0.75')"
SHORT = f"%%px\n{TABLE}"
LONG = """%%px
import os, time

{table}
while not os.path.exists({end!r}):
    time.sleep(0.05)
"""
FAILS = """%%px
def inverse(x):
    "Return 1 / x."
    return 1 / x


inverse(0)
"""
HANG = """%%px
from mpi4py import MPI

if rank != 1:
    MPI.Intracomm(comm).Barrier()
"""
SUM = "%px print(comm.allreduce(1))"
FAILS_HERE = "int('seven')  # in the kernel"
START, QUICK, SLOW, FAILING, FAILING_HERE = range(5)


@pytest.fixture(scope="module")
def end(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a file that ends the long cell."""
    return tmp_path_factory.mktemp("long") / "end"


@pytest.fixture(scope="module")
def cells(browser: Browser, lab: Lab, end: Path) -> Iterator[Notebook]:
    long = LONG.format(table=TABLE, end=str(end))
    name = lab.write("cells.ipynb", CONNECT, SHORT, long, FAILS, FAILS_HERE)
    with a_page(browser, lab) as page:
        notebook = open_notebook(lab, page, name)
        yield notebook


@pytest.fixture
def connected(cells: Notebook) -> Notebook:
    if not cells.text(START):
        assert "4 ranks" in cells.run(START)
    return cells


def test_a_long_cell_shows_what_the_ranks_do_and_leaves_only_their_output(
    connected: Notebook, end: Path
) -> None:
    connected.start(SLOW)
    view = connected.output(SLOW).filter(has_text="The stop button ends")
    view.wait_for()
    line = view.locator("tr", has_text="ranks 0–3").filter(has_text="0.75")
    line.wait_for()  # the last line that they have printed
    connected.assert_legible(view)
    end.touch()
    connected.wait()
    connected.run(QUICK)
    assert connected.text(SLOW) == connected.text(QUICK)
    (block,) = connected.output(SLOW).all_inner_texts()
    assert block.splitlines()[:3] == ["[ranks 0–3]", *[line[7:-2] for line in TABLE.splitlines()]]
    saved = [cell.outputs for cell in connected.save().cells]
    assert saved[SLOW] == saved[QUICK] and [one.output_type for one in saved[SLOW]] == ["stream"]


def test_an_error_of_all_ranks_is_shown_once_with_jupyterlabs_line(connected: Notebook) -> None:
    said = connected.run(FAILING)
    assert said.startswith("ZeroDivisionError on ranks 0–3: division by zero\n")
    connected.menu("View", "Show Line Numbers")
    lines = connected.code(FAILING).locator(".cm-line").all_inner_texts()
    numbers = connected.code(FAILING).locator(".cm-lineNumbers .cm-gutterElement:visible")
    shown = dict(zip(lines, [n for n in numbers.all_inner_texts() if n][-len(lines) :], strict=True))
    connected.menu("View", "Show Line Numbers")
    for line in "inverse(0)", "    return 1 / x":
        assert said.count(f"----> {shown[line]} {line}") == 1, (shown, said)


@pytest.mark.parametrize("cell", [FAILING, FAILING_HERE])
def test_tracebacks_are_legible_in_both_themes(connected: Notebook, cell: int) -> None:
    assert "---->" in connected.run(cell)
    connected.assert_legible(connected.output(cell))


def saved_outputs(lab: Lab, notebook: Notebook) -> str:
    """Return the second cell's outputs in the file; nothing while the server writes it."""
    try:
        return str(lab.saved(notebook.path).cells[1].outputs)
    except nbformat.reader.NotJSONError:
        return ""


# The end of a page shuts down all kernels, the one of the notebook above too, so these tests come last.
def test_a_view_of_a_notebook_that_was_closed_says_that_it_is_old(
    lab: Lab, page: Page, tmp_path: Path
) -> None:
    """JupyterLab loses what arrives while a notebook is closed; the kernel still has it."""
    long = LONG.format(table=TABLE, end=str(tmp_path / "end"))
    notebook = open_notebook(lab, page, lab.write("closed.ipynb", CONNECT, long, "%pxresult"))
    notebook.run(0)
    notebook.start(1)
    view, old = notebook.output(1).filter(has_text="ranks done"), notebook.output(1).get_by_text("is old")
    view.filter(has_text="0.75").wait_for()
    assert not old.is_visible()
    page.evaluate("() => { jupyterapp.commands.execute('docmanager:save'); }")
    wait_until(lambda: "0.75" in saved_outputs(lab, notebook), "the view is saved")
    page.goto("about:blank")
    (tmp_path / "end").touch()
    notebook = open_notebook(lab, page, notebook.path)
    old.wait_for()
    assert notebook.run(2).count("0.75") == 1  # all ranks have printed it alike


def test_the_stop_button_ends_a_hang(lab: Lab, page: Page) -> None:
    notebook = open_notebook(lab, page, lab.write("stop.ipynb", CONNECT, HANG, SUM))
    notebook.run(0)
    notebook.start(1)
    view = notebook.output(1).filter(has_text="The stop button ends")
    view.locator("tr", has_text="ranks 0, 2, 3").filter(
        has_text="cell line 5: MPI.Intracomm(comm).Barrier()"
    ).wait_for()
    assert "done" in view.locator("tr", has_text="rank 1").inner_text()
    notebook.stop()
    notebook.wait()
    said = notebook.text(1)
    assert said.startswith("KeyboardInterrupt: the cell was stopped.") and "stop button" not in said
    assert "ranks 0, 2, 3" in said and "MPI.Intracomm(comm).Barrier()" in said
    assert "4 ranks" in notebook.run(0)
    assert notebook.run(2) == "[ranks 0–3] 4\n"
