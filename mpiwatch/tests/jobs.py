"""Start MPI ranks from a test, wait for what they do, and leave none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.mark.structures import ParameterSet

from mpiwatch import launch
from mpiwatch.processes import supervised

# A job that takes longer counts as hanging; on an idle machine every job takes a few seconds.
DEADLINE_S = 120
WAIT_S = 150.0  # for a condition, on a busy machine

PROGRAMS = Path(__file__).parent / "programs"  # that tests run on ranks


def thorough(value: object) -> ParameterSet:
    """Mark a value of a parametrized test: `make test` leaves it out, `make test-all` runs it."""
    return pytest.param(value, marks=pytest.mark.thorough)


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
    """Wait until a condition is true and return its value; fail with its description if it takes too long."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds:.0f} s still not: {what}", pytrace=False)
        time.sleep(0.05)
    return value


def kill_tree(job: subprocess.Popen[str]) -> None:
    """Kill all processes of a job with SIGKILL, and wait until its supervisor has cleaned up after them."""
    family = set(psutil.Process(job.pid).children(recursive=True))
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if pid != job.pid and os.getsid(pid) == job.pid:
                family.add(psutil.Process(pid))
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=DEADLINE_S)  # their memory is in use until they are gone
    job.wait(DEADLINE_S)


@contextmanager
def started(p: int, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Start this Python with the arguments on p ranks.

    The job ends with the block, and with this process if that is killed.
    """
    command = [launch.mpiexec(), "-n", str(p), sys.executable, *map(str, arguments)]
    job = subprocess.Popen(
        [*supervised(), *command],
        env={**os.environ, **launch.settings()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            kill_tree(job)
        if job.stdout:
            job.stdout.close()


def run(p: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run this Python with the arguments on p ranks. If the job hangs, kill it and fail the test."""
    with started(p, *arguments) as job:
        try:
            output, _ = job.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired as late:
            kill_tree(job)
            said = late.stdout or b""
            said = said.decode(errors="replace") if isinstance(said, bytes) else said
            pytest.fail(f"{p} ranks hang ({DEADLINE_S} s); their output:\n{said}", pytrace=False)
        return subprocess.CompletedProcess(job.args, job.returncode, output)
