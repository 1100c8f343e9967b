"""Our communicators under mpi4py's own tests, and counted on eight ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import platformdirs
import pytest

from tests.conftest import PROGRAMS, run, thorough

LIMIT_S = 300


@pytest.fixture(scope="session")
def mpi4py_tests() -> Path:
    """The folder of mpi4py's tests, from the source distribution of the version in use; fetched once."""
    cache = platformdirs.user_cache_path("labkit") / "tests"
    source = cache / f"mpi4py-{version('mpi4py')}"
    if not source.exists():
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mpi4py"]
        fetch += ["--dest", str(cache), f"mpi4py=={version('mpi4py')}"]
        try:
            fetched = subprocess.run(fetch, check=False, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.skip(f"mpi4py's source distribution could not be fetched within {LIMIT_S} s")
        archive = source.with_name(source.name + ".tar.gz")
        if not archive.exists():
            pytest.skip(f"mpi4py's source distribution could not be fetched: {fetched.stderr[-300:]}")
        with tarfile.open(archive) as files:
            # Python 3.11.2, which Debian 12 has, does not know filters.
            files.extractall(cache, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        archive.unlink()
    return source / "test"


# For other stacks, numbers of ranks and modules of mpi4py, run tests/programs/mpi4py_suite.py.
STACKS = ("counting(ring(watched))", "ring(counting(watched))", "counting", "tree", "watched", "emulated")
MODULES = ("test_p2p_obj", "test_p2p_obj_matched", "test_p2p_buf_matched", "test_p2p_buf", "test_cco_buf")
MODULES += ("test_cco_obj", "test_comm", "test_comm_topo", "test_msgzero", "test_request")


@pytest.mark.parametrize("stack", [STACKS[0], *map(thorough, STACKS[1:])])
def test_mpi4pys_own_tests_pass_on(stack: str, mpi4py_tests: Path) -> None:
    done = run(3, PROGRAMS / "mpi4py_suite.py", mpi4py_tests, stack, *MODULES)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"communicator"')]
    assert [row["failed"] for row in rows] == [{}] * len(rows), done.stdout
    assert len(rows) == len(MODULES), done.stdout
    assert done.returncode == 0, done.stdout  # nothing aborts at exit
    assert sum(row["passed"] for row in rows) > 200  # a suite that skips nearly everything shows nothing
