"""Ranks on several machines: faults are reported as on one machine, with ranks and hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi4py import MPI

from mpiwatch import HANG_EXIT_CODE
from mpiwatch.communicators import SEPARATE
from mpiwatch.processes import supervised
from tests.conftest import thorough
from tests.hosts.conftest import Run as RunHosts
from tests.hosts.conftest import allowed, folder, labkit_hosts  # noqa: F401

Run = Callable[..., subprocess.CompletedProcess[str]]

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


@pytest.mark.parametrize(("p", "ranks"), [(4, 2), pytest.param(5, 2, marks=pytest.mark.thorough)])
def test_waits_that_end_by_themselves(run: Run, programs: Path, p: int, ranks: int) -> None:
    done = run(p, programs / "on_machines.py", ranks, programs / "hangs_between_machines.py")
    assert done.returncode == 0, done.stdout
    lines = [
        line for line in done.stdout.splitlines() if line.startswith("[")
    ]  # MPICH may print more when it ends
    said = {name: (title, who) for name, title, who in map(json.loads, lines)}
    way = " → ".join(map(str, [0, *range(p - 1, -1, -1)]))
    assert said["circle"] == (
        f"ranks {way} wait for each other in a circle: each waits in recv for a message from the next.",
        [True] * p,
    )
    assert (
        said["missing_send"][0] == f"rank 0 is waiting in recv: no matching send from rank {p - 1} (tag 7)."
    )
    assert re.match(
        r"rank 0 \(host .*\) never joined collective #\d+ \(Barrier\)", said["missing_on_one_machine"][0]
    )
    assert said["missing_on_one_machine"][1] == [rank == 1 for rank in range(p)]
    assert said["mismatch_on_one_machine"] == (
        said["mismatch_on_one_machine"][0],
        [rank < 2 for rank in range(p)],
    )
    assert "with different counts" in said["mismatch_on_one_machine"][0]
    assert "ring_allreduce: no matching send from rank" in said["missing_in_schedule"][0]
    assert said["nothing"] == ("", [False] * p)


@pytest.mark.parametrize(("p", "ranks"), [pytest.param(3, 2, marks=pytest.mark.thorough), (2, 1)])
def test_every_call_gives_the_result_of_mpi4pys_own(run: Run, programs: Path, p: int, ranks: int) -> None:
    done = run(p, programs / "on_machines.py", ranks, programs / "watched_calls.py")
    assert done.stdout.strip() == "all calls compared"


def test_a_machine_that_cannot_reach_rank_0_is_named_and_nothing_hangs(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "unreachable.py"
    program.write_text(
        "from mpiwatch import communicators, machines\n"
        "from mpi4py import MPI\n"
        "from mpiwatch.communicators import watch\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "communicators.machine = lambda: (str(rank),)\n"
        "communicators.addresses = lambda: ['127.0.0.1']\n"
        "machines.Listener._admit = lambda self, sock: sock.close()  # as if behind a firewall\n"
        "comm = watch()\n"
        "assert comm.watch is None and comm.allreduce(1) == 2\n"
    )
    done = run(2, program)
    assert done.returncode == 0, done.stdout
    assert "The ranks are not watched: rank 1 cannot reach rank 0 (127.0.0.1: " in done.stdout


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
