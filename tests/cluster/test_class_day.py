"""The simulated class of tools/class_day.py: one student, who meets what a class meets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from labkit.checks.exercise import PACKAGE
from mpiwatch.processes import LINUX
from tests.cluster_fixtures import wait_until
from tests.servers import missing_of_jupyterhub

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(not LINUX, reason="it measures a Linux server"),
]

NO_HUB = missing_of_jupyterhub()
MARK = "LABKIT_TEST_OF_A_CLASS"  # in the environment of all that it starts
CLASS_DAY = [sys.executable, str(PACKAGE.parent / "tools" / "class_day.py"), "1", "--think=0", "--arrive=0"]


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that have this mark in their environment."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                processes.append(process)
    return processes


def engines(mark: str) -> list[psutil.Process]:
    """Return the engines among these processes, without the process that has forked them."""
    processes = []
    for process in marked(mark):
        with suppress(psutil.Error):
            if "labkit.cluster.adapter.engine" in process.cmdline() and process.num_threads() > 3:
                processes.append(process)
    return processes


def test_a_student_works_and_nothing_goes_wrong(tmp_path: Path) -> None:
    file = tmp_path / "day.json"
    events = ["hang", "killed rank", "restart", "closed tab"]
    words = [*CLASS_DAY, "--cells=6", "--notebooks", "00", "--once", *events, f"--json={file}"]
    day = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert day.returncode == 0, day.stdout + day.stderr
    assert "left behind: nothing" in day.stdout
    measured = json.loads(file.read_text())
    assert measured["problems"] == {}
    seconds = measured["seconds"]
    assert len(seconds["connect() again"]) == 2  # after the killed rank and the restart
    kinds = "check of a right answer", "report of a hang", "report of a killed rank", "tab opened again"
    for kind in kinds:
        assert len(seconds[kind]) >= 1 and f"| {kind} |" in day.stdout, kind


@pytest.mark.skipif(NO_HUB != "", reason=NO_HUB)
def test_a_student_works_on_a_real_jupyterhub(tmp_path: Path) -> None:
    """With the settings of examples/jupyterhub_config.py, the copies of the notebooks among them."""
    file = tmp_path / "day.json"
    words = [*CLASS_DAY, "--hub", "--cells=3", "--notebooks", "00", "--once", "restart", f"--json={file}"]
    day = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert day.returncode == 0, day.stdout + day.stderr
    assert "JupyterHub was ready" in day.stdout and "left behind: nothing" in day.stdout
    measured = json.loads(file.read_text())
    assert measured["problems"] == {}
    kinds = "start of a server", "connect()", "restart of the kernel", "connect() again"
    assert all(len(measured["seconds"][kind]) == 1 for kind in kinds), measured["seconds"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_all_that_it_has_started_ends_with_it(end: signal.Signals) -> None:
    mark = uuid4().hex
    environment = {**os.environ, MARK: mark}
    words, nothing = [*CLASS_DAY, "--notebooks", "00"], subprocess.DEVNULL
    with subprocess.Popen(words, env=environment, stdout=nothing, stderr=nothing) as day:
        wait_until(lambda: len(engines(mark)) == 4, "four ranks run", 300)
        home = Path(engines(mark)[0].environ()["HOME"])
        day.send_signal(end)
        day.wait(300)
    wait_until(lambda: not marked(mark), "all processes have ended", 120)
    wait_until(lambda: not home.exists(), "its folder is removed", 60)
