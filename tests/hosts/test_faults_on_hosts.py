"""Watched programs on the hosts of `labkit hosts`: a fault is reported with its rank and its host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

from mpiwatch.communicators import SEPARATE
from mpiwatch.launch import HANG_EXIT_CODE
from mpiwatch.processes import supervised
from tests.conftest import thorough
from tests.hosts.conftest import Run as RunHosts
from tests.hosts.conftest import allowed, folder, labkit_hosts  # noqa: F401

PROGRAM = """import os, sys, time
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
x = np.ones(256, np.float32)
comm.Allreduce(MPI.IN_PLACE, x)
"""
# What the last rank (or each rank) does → patterns of the report. The last rank is on host lab{size - 1}.
FAULTS = {
    "missing": (
        "if rank < size - 1: comm.Allreduce(MPI.IN_PLACE, x)",
        [
            r"^rank 2 \(host lab2\) never joined collective #2 \(Allreduce, 256 float32, SUM\)\.",
            r"ranks 0, 1 \(hosts lab0, lab1\) are waiting in Allreduce .*fault.py line 9: `if rank",
            r"rank 2 \(host lab2\) finished collective #1 .* it has ended its program",
        ],
    ),
    "dies": (
        "if rank == size - 1: os._exit(3)\ncomm.Barrier()",
        [r"^rank 2 of 3 .*ended with exit code 3"],
    ),
    "rank 0 is killed": (
        "if rank == 0: os.kill(os.getpid(), 9)\ncomm.Barrier()",
        [r"^rank 0 of 3 .*was killed by SIGKILL"],
    ),
    "window": (
        "if rank < size - 1: MPI.Win.Allocate(80, comm=comm)",
        [r"^Deadlock: ranks 0, 1 have .* Alloc"],
    ),
}


@pytest.fixture
def three_hosts(labkit_hosts: RunHosts, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Three hosts with one rank each that share no flight recorder."""
    assert labkit_hosts("up", "--n", "3").returncode == 0
    monkeypatch.setenv(SEPARATE, "1")


def program_on_hosts(program: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a watched program on the hosts."""
    program.write_text(PROGRAM + text)
    command = [sys.executable, "-m", "mpiwatch", "--deadline", "1", str(program)]
    return subprocess.run(
        [*supervised(), sys.executable, "-m", "labkit.hosts.mpi", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("what", ["dies", *(thorough(each) for each in FAULTS if each != "dies")])
def test_a_fault_on_hosts_is_reported(three_hosts: None, tmp_path: Path, what: str) -> None:
    if MPI.get_vendor()[0] == "Open MPI" and what in ("dies", "rank 0 is killed"):
        pytest.skip("Open MPI ends the job first: its other ranks abort when a TCP connection is closed")
    text, expected = FAULTS[what]
    done = program_on_hosts(tmp_path / "fault.py", text)
    assert done.returncode in (HANG_EXIT_CODE, 3, 137), done
    for pattern in expected:
        assert re.search(pattern, done.stderr + done.stdout, re.MULTILINE), done.stderr + done.stdout
