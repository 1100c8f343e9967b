"""The tests use their own profile folder and leave no process behind, and notebooks cannot hang."""

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

# No test process is an MPI process: modules that it imports may load MPI, but must not initialise it.
mpi4py.rc.initialize = False

# For a whole notebook. Notebooks are written to run within a minute on two cores.
NOTEBOOK_LIMIT_S = 240
CELL_LIMIT_S = pytest.StashKey[float]()  # the option --nbval-cell-timeout, for each cell
LEFT_BEHIND_S = 20  # for processes to end whose owner has ended

# Processes that a test starts inherit IPYTHONDIR. So they leave the user's clusters alone, and the check for
# processes left behind can find them.
HOME = tempfile.mkdtemp(prefix="labkit-tests-")
os.environ["IPYTHONDIR"] = HOME
os.environ["IPP_NONINTERACTIVE"] = "1"  # `%%px` output by rank, in order
for name in ("LABKIT_CLUSTER", "PYTHONUNBUFFERED"):  # the user's settings must not affect tests
    os.environ.pop(name, None)


def started_here(folder: str = HOME) -> list[psutil.Process]:
    """Return the processes, other than this one, that have our profile folder in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("IPYTHONDIR") == folder:
                found.append(process)
        except psutil.Error:
            pass
    return found


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CELL_LIMIT_S] = config.getoption("nbval_cell_timeout", 150)


def pytest_sessionfinish(session: pytest.Session) -> None:
    deadline = time.monotonic() + LEFT_BEHIND_S
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


# nbval alone applies its timeout to each cell, so a notebook can hang once per cell. It also passes a cell
# that it interrupted if `%%px` swallowed the interrupt, or if the cell is expected to raise.


def is_cell(item: pytest.Item) -> bool:
    return type(item).__name__ == "IPyNbCell"


def pytest_runtest_setup(item: Any) -> None:
    if is_cell(item):
        notebook = item.parent
        notebook.began = getattr(notebook, "began", time.monotonic())
        left = notebook.began + NOTEBOOK_LIMIT_S - time.monotonic()
        tags = item.cell.metadata.get("tags", [])  # `timeout-5` sets a shorter limit
        limits = [float(tag.partition("-")[2]) for tag in tags if tag.startswith("timeout-")]
        item.config.option.nbval_cell_timeout = max(1, min(item.config.stash[CELL_LIMIT_S], left, *limits))


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
