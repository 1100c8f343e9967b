"""`mpiwatch -n 4 program.py`: it needs mpi4py, NumPy and an MPI alone, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jobs import thorough
from mpiwatch import processes
from mpiwatch.launch import HANG_EXIT_CODE
from mpiwatch.processes import FLIGHT_RECORDER

# Imported by every Python that starts: no module but these and the standard library's can be imported.
ONLY = """
import sys
from importlib.abc import MetaPathFinder

class Only(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        known = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if not known and top not in ("mpi4py", "numpy", "mpiwatch"):
            raise ModuleNotFoundError(f"No module named {name!r} here", name=name)

sys.meta_path.insert(0, Only())
"""
HANGS = "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\ncomm.Barrier()\ncomm.rank or comm.allreduce(1)\n"


@pytest.mark.parametrize("options", [thorough([]), ["--strict"]])  # which imports more
def test_it_needs_mpi4py_and_numpy_alone(tmp_path: Path, options: list[str]) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(HANGS)
    (tmp_path / "sitecustomize.py").write_text(ONLY)
    done = subprocess.run(
        [sys.executable, "-m", "mpiwatch", "-n", "2", "--deadline", "5", *options, str(program)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    _, report, rest = done.stdout.partition("rank 1 never joined collective #2 (allreduce, SUM).")
    assert report, done.stdout
    assert "TERMINATION" not in rest, done.stdout  # the launcher's last words come before the report
    assert done.returncode == HANG_EXIT_CODE, done.stdout


def test_a_rank_does_not_start_ranks() -> None:
    script = str(Path(sys.executable).with_name("mpiwatch"))
    for command, usage in ([script], "mpiwatch"), ([sys.executable, "-m", "mpiwatch"], "python -m mpiwatch"):
        done = subprocess.run(
            [*command, "-n", "2", "program.py"],
            env={**os.environ, "PMI_RANK": "0", "PMI_SIZE": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and done.stderr.startswith(f"usage: {usage} [-h]")
        assert "MPICH's mpiexec has already started this process as a rank" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGKILL, thorough(signal.SIGINT)])
def test_a_launcher_that_is_ended_leaves_nothing_behind(tmp_path: Path, signum: signal.Signals) -> None:
    program = tmp_path / "sleeps.py"
    program.write_text(
        f"import time\nfrom mpi4py import MPI\nopen(r'{tmp_path}/' + str(MPI.COMM_WORLD.rank), 'w')\n"
        "time.sleep(100)\n"
    )
    job = subprocess.Popen([sys.executable, "-m", "mpiwatch", "-n", "2", str(program)])
    deadline = time.monotonic() + 60
    while not all((tmp_path / rank).exists() for rank in "01") and time.monotonic() < deadline:
        time.sleep(0.05)
    started = [
        each for each in psutil.process_iter(["cmdline"]) if str(program) in (each.info["cmdline"] or ())
    ]
    assert len(started) > 4
    job.send_signal(signum)
    job.wait()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
    left = [path for path in processes.forgotten_flight_recorders() if f"{FLIGHT_RECORDER}{job.pid}-" in path]
    assert left == []
