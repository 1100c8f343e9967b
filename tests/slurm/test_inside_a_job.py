"""Jupyter in a job of a real SLURM: ranks of this machine stay there; the profile `slurm` submits a job."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cluster_fixtures import World, wait_until
from tests.slurm.local_cluster import LocalCluster

PROGRAM = """\
import os, subprocess, sys
from labkit.cluster import connect
assert "SLURM_JOB_ID" in os.environ
node = lambda: __import__("os").environ.get("SLURMD_NODENAME", "this machine")
print("local", connect(3, timeout=60)[:].apply_sync(node), flush=True)
run = [sys.executable, "-m", "labkit", "run", "-n", "3", "ranks.py"]
print("run", subprocess.run(run, capture_output=True, text=True, timeout=60).stdout.split(), flush=True)
print("slurm", sorted(connect(2, profile="slurm", timeout=60)[:].apply_sync(node)), flush=True)
"""
RANKS = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1))"


def test_connect_and_labkit_run_inside_a_job(slurm: LocalCluster, world: World, tmp_path: Path) -> None:
    (tmp_path / "slurm.ini").write_text("[slurm]\nnodes = 2\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "ranks.py").write_text(RANKS)
    output = tmp_path / "output"
    own = {name: value for name, value in world.env.items() if name != "LABKIT_PROFILE"}
    own |= {"LABKIT_SLURM": str(tmp_path / "slurm.ini")}
    submit = ["sbatch", "--parsable", "--nodes=2", "--ntasks=2", f"--output={output}", "--export=ALL"]
    job = subprocess.run(
        [*submit, "--wrap", f"{shlex.quote(sys.executable)} program.py"],
        env=own, cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    wait_until(lambda: job not in slurm.jobs(), "the job has ended")
    said = output.read_text()
    assert "local ['this machine', 'this machine', 'this machine']" in said, said
    assert "run ['3', '3', '3']" in said, said
    assert re.search(r"slurm \['n\d', 'n\d'\]", said), said
    wait_until(lambda: not slurm.jobs(), "the queue is empty", 60)
