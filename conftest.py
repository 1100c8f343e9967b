"""The tests use their own profile folder and leave no process behind, and notebooks cannot hang."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mpi4py
import psutil
import pytest

from mpiwatch import launch
from mpiwatch.processes import alive

# Before any test imports NumPy: on busy cores, BLAS threads spend most of their time waiting for each other.
os.environ.update(launch.ONE_THREAD)
# MPICH's ranks sleep while they wait, instead of polling: the ranks of two tests at once share the cores. For
# Open MPI's, mpiwatch.launch sees to it.
os.environ.update({"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "100"})
# No test process is an MPI process: modules that it imports may load MPI, but must not initialise it.
mpi4py.rc.initialize = False

# Started in the background, by nohup or by some runners, a process ignores SIGINT, and so do its children.
# Some tests interrupt a program: start it as a terminal does.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For a whole notebook. Notebooks are written to run within a minute on two cores.
NOTEBOOK_LIMIT_S = 240
CELL_LIMIT_S = pytest.StashKey[float]()  # the option --nbval-cell-timeout, for each cell
LEFT_BEHIND_S = 20  # for processes to end whose owner has ended
# What takes longest runs first, and what starts no ranks runs last: it is short, so no worker waits long for
# another. Between two notebooks come some files of tests, so that few clusters start at the same time.
LONG = (
    "tests/test_checks.py",
    "tests/train/",
    "tests/test_make_env.py",
    "tests/hosts/test_ssh.py",
    "mpiwatch/tests/",
    "tests/comm/",
    "tests/test_wheel.py",
)
WITHOUT_RANKS = ("tests/cli/", "tests/data/", "tests/nn/", "tests/plots/", "tests/schedules/")
FILES_BETWEEN_NOTEBOOKS = 4
left_behind: list[str] = []  # a line for each process that was left behind

# Processes that a test starts inherit IPYTHONDIR. So they leave the user's clusters alone, and the check for
# processes left behind can find them.
PREFIX = f"{tempfile.gettempdir()}/labkit-tests-"
HOME = tempfile.mkdtemp(prefix=f"{os.path.basename(PREFIX)}{os.getpid()}-")
os.environ["IPYTHONDIR"] = HOME
os.environ["LABKIT_HOSTS"] = f"{HOME}/hosts"  # two workers' notebooks must not share hosts
os.environ["LABKIT_PROGRESS"] = f"{HOME}/progress.json"  # what tests solve is not for users either
os.environ["IPP_NONINTERACTIVE"] = "1"  # `%%px` output by rank, in order
os.environ.pop("PYTHONUNBUFFERED", None)  # the user's settings must not affect tests


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


def remove_folders_of_killed_runs() -> None:
    for folder in glob.glob(f"{PREFIX}*"):
        owner = folder.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    remove_folders_of_killed_runs()
    config.stash[CELL_LIMIT_S] = config.getoption("nbval_cell_timeout", 150)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `pytest -n 2`: each file or notebook runs in one worker, in the order of the collection.

    The corpus of exercises is one file with hundreds of tests, and any worker runs any of them.
    """
    if config.option.markexpr.startswith("exercises"):
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415  (also without pytest-xdist, tests run)

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = dict.fromkeys(item.nodeid.partition("::")[0] for item in items)
    # Of the notebooks, the last ones take longest.
    notebooks = sorted((file for file in files if file.endswith(".ipynb")), reverse=True)
    tests = sorted(
        (file for file in files if not file.endswith(".ipynb")),
        key=lambda file: (
            file.startswith(WITHOUT_RANKS),
            *(not file.startswith(long) for long in LONG),
        ),
    )
    place = {file: float(number) for number, file in enumerate(tests)}
    place |= {file: FILES_BETWEEN_NOTEBOOKS * number - 0.5 for number, file in enumerate(notebooks)}
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])


def end_processes_left_behind() -> list[str]:
    """Wait for the processes that tests have started; kill those that stay, and return a line for each."""
    deadline = time.monotonic() + LEFT_BEHIND_S
    while (left := started_here()) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = []
    for process in left:
        with suppress(psutil.NoSuchProcess):
            lines.append(f"  {process.pid} {' '.join(process.cmdline())[:150]}")
            process.kill()
    return lines


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collect what a worker of pytest-xdist found: it has no terminal, and its exit status does not count."""
    left_behind.extend(getattr(node, "workeroutput", {}).get("left", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    config: Any = session.config
    if hasattr(config, "workerinput"):
        config.workeroutput["left"] = end_processes_left_behind()
    elif not config.getoption("numprocesses", None):  # with workers, only they start anything
        left_behind.extend(end_processes_left_behind())
    if left_behind:
        print("\nLeft behind by the tests:", *left_behind, sep="\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
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
