"""Start MPI ranks from a test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from _pytest.mark.structures import ParameterSet

from labkit.children import start_child
from mpiwatch import launch
from tests.cluster_fixtures import ipcluster, kernel, world  # noqa: F401  (for every room's tests)

# A job that takes longer counts as hanging; on an idle machine every job takes a few seconds.
DEADLINE_S = 120
NOTEBOOK_S = 400  # for one notebook, on a busy machine

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"  # that tests run on ranks


def thorough(value: object) -> ParameterSet:
    """Mark a value of a parametrized test: `make test` leaves it out, `make test-all` runs it."""
    return pytest.param(value, marks=pytest.mark.thorough)


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


def run_python(
    *words: str | Path, code: int | None = 0, python: str | Path = sys.executable, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run this Python and return what it has printed. Its exit status must be `code`, unless that is None."""
    options = {"timeout": DEADLINE_S, **options}
    done = subprocess.run([python, *words], capture_output=True, text=True, check=False, **options)
    assert code in (None, done.returncode), (
        f"exit status {done.returncode}\n{done.stdout}{done.stderr[-3000:]}"
    )
    return done


def run_notebook(path: Path, python: str | Path = sys.executable) -> Any:
    """Run a notebook in its folder, as `make notebooks` does, and return it with its outputs."""
    program = HERE.parent / "tools/run_notebooks.py"
    run_python(program, path.name, python=python, cwd=path.parent, timeout=NOTEBOOK_S)
    return nbformat.read(path, as_version=4)


@contextmanager
def started(p: int, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Start this Python with the arguments on p ranks.

    The job ends with the block, and with this process if that is killed.
    """
    command = [launch.mpiexec(), "-n", str(p), sys.executable, *map(str, arguments)]
    environment = {**os.environ, **launch.settings()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    job = start_child(command, env=environment, text=True, **pipes)
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


def run_commands(p: int, *commands: tuple[str | Path, ...]) -> list[tuple[list[int], str]]:
    """Run several `labkit` commands in one job; return the ranks' exit statuses and the output of each.

    Output is that of rank 0 on standard error; standard output of other ranks may come with a later command.
    """
    listed = json.dumps([list(map(str, command)) for command in commands])
    done = run(p, PROGRAMS / "several_commands.py", listed)
    assert done.returncode == 0, done.stdout
    parts = re.split(r"^ENDED (\[.*\])\n", done.stdout, flags=re.MULTILINE)
    ends = [(json.loads(statuses), text) for text, statuses in zip(parts[::2], parts[1::2], strict=False)]
    assert len(ends) == len(commands), done.stdout
    return ends


@pytest.fixture(scope="session", name="run")
def _run() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run


@pytest.fixture(scope="session")
def programs() -> Path:
    return PROGRAMS
