"""A hang in an MPI call that nobody watches: the stop button ends it, and so does a restart of the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.jupyterlab import CONNECT, Lab, open_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

HANG = """%%px
import os
from mpi4py import MPI

if rank != 1 and not os.path.exists({end!r}):
    MPI.Intracomm(comm).Barrier()
"""
SUM = "%px print(comm.allreduce(1))"


def test_the_stop_button_ends_a_hang(lab: Lab, page: Page) -> None:
    hang = HANG.format(end=str(lab.folder / "never"))
    notebook = open_notebook(lab, page, lab.write("stop.ipynb", CONNECT, hang, SUM))
    notebook.run(0)
    notebook.start(1)
    view = notebook.output(1).filter(has_text="The stop button ends")
    view.locator("tr", has_text="ranks 0, 2, 3").filter(
        has_text="cell line 6: MPI.Intracomm(comm).Barrier()"
    ).wait_for()
    assert "done" in view.locator("tr", has_text="rank 1").inner_text()
    notebook.stop()
    notebook.wait()
    said = notebook.text(1)
    assert said.startswith("KeyboardInterrupt: the cell was stopped.") and "stop button" not in said
    assert "ranks 0, 2, 3" in said and "MPI.Intracomm(comm).Barrier()" in said
    assert "4 ranks" in notebook.run(0)
    assert notebook.run(2).count("4") >= 4


def test_run_all_after_a_kernel_restart_during_a_hang(lab: Lab, page: Page) -> None:
    calm = lab.folder / "calm"
    hang = HANG.format(end=str(calm))
    notebook = open_notebook(lab, page, lab.write("restart.ipynb", CONNECT, hang, SUM))
    notebook.run(0)
    notebook.start(1)
    notebook.output(1).filter(has_text="MPI.Intracomm(comm).Barrier()").wait_for()
    calm.touch()
    notebook.restart_kernel()
    notebook.run_all()
    assert notebook.errors() == {}
    assert notebook.text(2).count("4") >= 4
