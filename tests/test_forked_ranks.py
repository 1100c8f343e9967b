"""Ranks of MPICH that one process forks are one MPI world, and end as those of mpiexec do."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mpiwatch import launch
from mpiwatch.processes import LINUX, is_mpich, supervised

pytestmark = pytest.mark.skipif(
    not LINUX or not is_mpich(launch.mpiexec()), reason="only MPICH's ranks are forked by one process"
)

PROGRAM = """
import os, sys, time
from pathlib import Path
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from labkit import forking
from labkit.forked_ranks import fork_ranks
os.environ[forking.EXITS] = {exits!r}
fork_ranks({ranks})
MPI.Init_thread()
comm, rank = MPI.COMM_WORLD, MPI.COMM_WORLD.rank
assert comm.allreduce(1) == comm.size == {ranks}, comm.size
assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == {ranks}
os.write(1, b"one world\\n")
{code}
"""
WAIT = "comm.Barrier()\nif rank != 1:\n    time.sleep(600)"


def command(program: str) -> list[str]:
    """Return the command of a program below a supervisor, which removes what ranks leave in /dev/shm."""
    return [*supervised(), sys.executable, "-c", program]


def run(tmp_path: Path, code: str, ranks: int = 3) -> tuple[int, str, list[int]]:
    """Return the exit code, the output and how the ranks have ended, in that order."""
    exits = tmp_path / "exits"
    program = PROGRAM.format(exits=str(exits), ranks=ranks, code=code)
    done = subprocess.run(command(program), capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("one world\n") == ranks, done
    ends = [int(line.split()[1]) for line in exits.read_text().splitlines()]
    return done.returncode, done.stdout + done.stderr, ends


@pytest.mark.parametrize("ranks", [1, 4])
def test_they_are_one_world(tmp_path: Path, ranks: int) -> None:
    assert run(tmp_path, "", ranks) == (0, "one world\n" * ranks, [0] * ranks)


def test_two_worlds_at_once_do_not_meet(tmp_path: Path) -> None:
    """MPICH names its shared memory after the name of the world."""
    folders = [tmp_path / "first", tmp_path / "second"]
    jobs = []
    for folder in folders:
        folder.mkdir()
        program = PROGRAM.format(exits=str(folder / "exits"), ranks=2, code="comm.Barrier()")
        jobs.append(subprocess.Popen(command(program), stdout=subprocess.DEVNULL))
    assert [job.wait(120) for job in jobs] == [0, 0]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), 11)", 128 + 11),
        ("os._exit(0)", 0),  # without MPI_Finalize
        ("comm.Abort(5)", 5),
    ],
)
def test_a_rank_that_ends_without_finalize_ends_the_others(tmp_path: Path, end: str, code: int) -> None:
    status, _, ends = run(tmp_path, f"{WAIT}\n{end}")
    assert status == code
    assert sorted(ends) == sorted([code if code < 128 else -11, -9, -9])


def test_signals_go_to_the_ranks_and_sigterm_ends_them(tmp_path: Path) -> None:
    code = (
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: os._exit(4))\n"
        "os.write(1, b'ready\\n')\ntime.sleep(600)"
    )
    for signum, expected in ((signal.SIGUSR1, 4), (signal.SIGTERM, 0)):
        program = PROGRAM.format(exits=str(tmp_path / "exits"), ranks=2, code=code)
        with subprocess.Popen(command(program), stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            lines = [job.stdout.readline() for _ in range(4)]
            assert lines.count("ready\n") == 2
            (forks,) = psutil.Process(job.pid).children()
            forks.send_signal(signum)
            assert job.wait(60) == expected


def test_mpi_refuses_what_needs_mpiexec(tmp_path: Path) -> None:
    once = "try:\n    MPI.COMM_SELF.Spawn('true')\nexcept MPI.Exception:\n    print('refused', rank)\n"
    code = 2 * once  # the answer to the first is no answer to the second
    status, output, _ = run(tmp_path, code, 2)
    assert status == 0 and output.count("refused") == 4
