"""Tab, Shift+Tab and `name?` in a `%%px` cell of JupyterLab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.jupyterlab import CONNECT, Lab, Notebook, a_page, open_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

WAITS = "%%px\nimport os, time\nwhile not os.path.exists({!r}):\n    time.sleep(0.05)"
START, EDITED, ASKS, BUSY = range(4)


@pytest.fixture(scope="module")
def end(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a file that ends the cell that waits."""
    return tmp_path_factory.mktemp("waits") / "end"


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: Lab, end: Path) -> Iterator[Notebook]:
    cells = CONNECT, "%%px", "%%px\ncomm.Allreduce?", WAITS.format(str(end))
    with a_page(browser, lab) as page:
        notebook = open_notebook(lab, page, lab.write("completion.ipynb", *cells))
        assert "4 ranks" in notebook.run(START)
        yield notebook


def type_in(notebook: Notebook, text: str) -> None:
    """Replace the text of the edited cell, as a student does, and wait until Tab would complete there.

    With a class, JupyterLab marks an editor in which Tab completes and does not indent: not while text is
    selected.
    """
    enabled = notebook.page.locator(".jp-mod-completer-enabled")
    notebook.code(EDITED).locator(".cm-content").click()
    notebook.page.keyboard.press("ControlOrMeta+a")
    enabled.wait_for(state="detached")
    notebook.page.keyboard.insert_text(text)
    enabled.wait_for(state="attached")


def offered(notebook: Notebook, text: str) -> list[str]:
    """Type a cell and press Tab; return what JupyterLab offers. It takes a single match without asking."""
    type_in(notebook, text)
    notebook.page.keyboard.press("Tab")
    items = notebook.page.locator(".jp-Completer .jp-Completer-match")
    items.first.wait_for()
    found = items.all_inner_texts()
    notebook.page.keyboard.press("Escape")
    items.first.wait_for(state="hidden")
    return found


def tooltip(notebook: Notebook, text: str) -> str:
    """Type a cell and press Shift+Tab; return what JupyterLab shows."""
    type_in(notebook, text)
    notebook.page.keyboard.press("Shift+Tab")
    box = notebook.page.locator(".jp-Tooltip")
    box.wait_for()
    shown = box.inner_text()
    notebook.page.keyboard.press("Escape")
    box.wait_for(state="hidden")
    return shown


def test_tab_completes_names_of_the_ranks(notebook: Notebook) -> None:
    assert {"Allreduce", "Send", "bcast"} <= set(offered(notebook, "%%px\ncomm."))
    assert offered(notebook, "%%px\ndef average(comm, gradient):\n    comm.Reduce_sc")[0] == "Reduce_scatter"
    assert "mean_of_all" in offered(notebook, "%%px\nmean_of_all, mean_of_some = 1, 2\nprint(mean_of")


def test_shift_tab_shows_mpi4pys_signature(notebook: Notebook) -> None:
    shown = tooltip(notebook, "%%px\ncomm.Allreduce(")
    assert "comm.Allreduce(sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op = SUM)" in shown
    assert "Reduce to All." in shown


def test_a_question_mark_shows_the_page_once(notebook: Notebook) -> None:
    assert notebook.run(ASKS).count("Reduce to All.") == 1


def test_both_work_while_a_cell_runs(notebook: Notebook, end: Path) -> None:
    notebook.start(BUSY)
    try:
        assert "Allreduce" in offered(notebook, "%%px\ncomm.All")
        assert "filled with zeros" in tooltip(notebook, "%%px\nnp.zeros(")
    finally:
        end.touch()
    notebook.wait()
