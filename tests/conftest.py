"""Starting real ranks from a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from labkit import env, leftovers
from tests.cluster_fixtures import ipcluster, kernel, new_kernel, world  # noqa: F401  (for every room's tests)

# A job that takes longer hangs: no job of these tests takes more than a few seconds on an idle machine.
DEADLINE_S = 120

HERE = Path(__file__).parent


def kill_tree(job: subprocess.Popen[str]) -> None:
    """Kill a job by SIGKILL, with all that it started: its descendants and what else is in its session."""
    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == job.pid:
                family.append(psutil.Process(pid))
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            pass
    for process in set(family):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    job.wait()
    psutil.wait_procs(set(family), timeout=10)  # until they are gone, their memory is in use
    leftovers.sweep(job.pid)  # what killed ranks could not remove


@contextmanager
def started(p: int, *arguments: str | Path, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Start this Python with the arguments on p ranks, after other words if given.

    Whatever happens, nothing of it is left at the end.
    """
    command = [*before, env.mpiexec(), "-n", str(p), sys.executable, *map(str, arguments)]
    environment = {**os.environ, **env.settings()}
    job = subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            kill_tree(job)
        if job.stdout:
            job.stdout.close()


def run(p: int, *arguments: str | Path, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run this Python with the arguments on p ranks; a job that hangs is killed and fails the test."""
    with started(p, *arguments, before=before) as job:
        try:
            output, _ = job.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired as late:
            kill_tree(job)
            said = late.stdout or b""
            said = said.decode(errors="replace") if isinstance(said, bytes) else said
            pytest.fail(f"{p} ranks hang ({DEADLINE_S} s); they said:\n{said}", pytrace=False)
        return subprocess.CompletedProcess(job.args, job.returncode, output)


@pytest.fixture(scope="session", name="run")
def _run() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run


@pytest.fixture(scope="session", name="started")
def _started() -> Callable[..., object]:
    return started


@pytest.fixture(scope="session", name="kill_tree")
def _kill_tree() -> Callable[[subprocess.Popen[str]], None]:
    return kill_tree


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of the programs that tests run on ranks."""
    return HERE / "programs"
