"""For every test: a profile folder of its own, notebooks that cannot hang, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mpi4py
import psutil
import pytest

# No test is an MPI process itself: what it imports may load MPI, but never starts it.
mpi4py.rc.initialize = False

# A whole notebook; one that takes longer hangs, for they are written to run within a minute on two cores.
NOTEBOOK_LIMIT_S = 240
PATIENCE_S = 20  # for processes to go whose owner has gone

# Everything that a test starts inherits this: its clusters are not the user's, and can be told apart.
HOME = tempfile.mkdtemp(prefix="labkit-tests-")
os.environ["IPYTHONDIR"] = HOME
os.environ["IPP_NONINTERACTIVE"] = "1"  # `%%px` output by rank, in order
for name in ("LABKIT_CLUSTER", "PYTHONUNBUFFERED"):  # what a user's environment may lack, tests do without
    os.environ.pop(name, None)


def started_here(folder: str = HOME) -> list[psutil.Process]:
    """Return the processes, other than this one, that carry our profile folder in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("IPYTHONDIR") == folder:
                found.append(process)
        except psutil.Error:
            pass
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (left := started_here()) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        lines = [f"  {process.pid} {' '.join(process.cmdline())[:150]}" for process in left]
        print("\nLeft behind by the tests:", *lines, sep="\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    shutil.rmtree(HOME, ignore_errors=True)


# nbval alone lets a notebook hang for as long as it has cells, and calls a cell passed whose interrupt was
# swallowed (ipyparallel's `%%px`), or taken for the exception that the cell is meant to raise.


def is_cell(item: pytest.Item) -> bool:
    return type(item).__name__ == "IPyNbCell"


def pytest_runtest_setup(item: Any) -> None:
    if is_cell(item):
        notebook = item.parent
        notebook.began = getattr(notebook, "began", time.monotonic())
        left = notebook.began + NOTEBOOK_LIMIT_S - time.monotonic()
        item.config.option.nbval_cell_timeout = max(1, min(item.config.option.nbval_cell_timeout, left))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    if not is_cell(item):
        return (yield)
    notebook = item.parent
    if notebook.timed_out:
        pytest.fail(f"not run: an earlier cell of {Path(item.path).name} hangs", pytrace=False)
    try:
        return (yield)
    finally:
        if notebook.timed_out:
            limit = item.config.option.nbval_cell_timeout
            name = item.cell.get("id", "?")
            pytest.fail(
                f"{Path(item.path).name}: cell {item.cell_num} ({name}) hangs: ended after {limit:.0f} s\n\n"
                f"{item.cell.source}",
                pytrace=False,
            )
