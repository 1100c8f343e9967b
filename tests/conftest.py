"""Start MPI ranks, programs and notebooks from a test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jobs import DEADLINE_S, kill_tree, run, started, thorough  # noqa: F401  (of mpiwatch's tests)
from tests.cluster_fixtures import ipcluster, kernel, world  # noqa: F401  (for the tests of every package)

NOTEBOOK_S = 400  # for one notebook, on a busy machine

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"  # that tests run on ranks


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
