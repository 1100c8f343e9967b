"""What notebook 09 starts beside its ranks: programs, another MPI library's launcher, jobs with a limit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from labkit.children import ChildError
from labkit.exercises import batch_jobs
from mpiwatch import launch
from mpiwatch.processes import is_mpich

# A job that writes a checkpoint on SIGUSR1 and goes on, as training ranks do.
JOB = """#!/bin/bash
trap 'echo "$SLURM_NTASKS $(command -v mpiexec)" > "$1/checkpoint.npz"' USR1
mkdir -p "$1"
echo '[rank 0] epoch 1: loss 0.9 (all 1.1), accuracy 0.5'
until [ -e "$1/checkpoint.npz" ]; do sleep 0.05; done
echo '[rank 0] epoch 2: loss 0.3 (all 0.4), accuracy 0.9'
sleep 60 &
wait $!
"""


def test_a_program_is_started_where_the_ranks_run() -> None:
    mpiexec = launch.mpiexec()
    assert batch_jobs.launcher("mpi", 3) == [mpiexec, "-n", "3"]
    assert batch_jobs.launcher("hosts", 3)[1:] == ["-m", "labkit.hosts.mpi", "-n", "3"]
    protocol = "pmi2" if is_mpich(mpiexec) else "pmix"
    assert batch_jobs.launcher("slurm", 3, "12") == [
        "srun",
        "--jobid=12",
        "--overlap",
        f"--mpi={protocol}",
        "-n",
        "3",
    ]


def test_a_command_returns_its_exit_code_and_both_outputs() -> None:
    program = "import sys; print('out', flush=True); print('error', file=sys.stderr); sys.exit(3)"
    assert batch_jobs.run_command([sys.executable, "-c", program]) == (3, ["out", "error"])
    with pytest.raises(ChildError, match="did not end within"):
        batch_jobs.run_command(["sleep", 60], deadline_s=0.2)


def test_another_librarys_launcher_numbers_worlds_of_one(tmp_path: Path) -> None:
    program = "from mpi4py.MPI import COMM_WORLD as w; import os; print(w.rank, w.size, sorted(os.environ))"
    code, lines = batch_jobs.run_command(
        [*batch_jobs.other_launcher(tmp_path, 2), sys.executable, "-c", program]
    )
    variable = "OMPI_COMM_WORLD_RANK" if is_mpich(launch.mpiexec()) else "PMI_RANK"
    worlds = [line for line in lines if line.startswith("0 1 ")]
    assert code == 0 and len(worlds) == 2 and all(variable in line for line in worlds)
    assert batch_jobs.run_command([*batch_jobs.other_launcher(tmp_path, 2), "sh", "-c", "exit 4"])[0] == 4


def test_a_job_is_warned_and_then_killed_at_its_time_limit(tmp_path: Path) -> None:
    run = batch_jobs.run_job(JOB, tmp_path / "run", "mpi", 3, time_limit=True)
    assert run.exit_code == 137
    assert str(run).splitlines() == [
        "   epoch 1: loss 0.9 on rank 0, 1.1 on all ranks",
        "   epoch 2: loss 0.3 on rank 0, 0.4 on all ranks",
        "   exit code 137",
    ]
    ntasks, mpiexec = (tmp_path / "run/checkpoint.npz").read_text().split()
    assert ntasks == "3" and mpiexec != launch.mpiexec()
    assert (tmp_path / "run.out").read_text().splitlines() == run.lines


def test_a_job_that_ends_before_its_time_limit_is_not_waited_for(tmp_path: Path) -> None:
    assert batch_jobs.run_job("exit 5\n", tmp_path / "run", "mpi", time_limit=True) == (5, [])


def test_a_script_finds_the_mpiexec_of_its_place(tmp_path: Path) -> None:
    run = batch_jobs.run_job('mpiexec -n "$SLURM_NTASKS" echo rank\n', tmp_path / "run", "mpi", 2)
    assert run == (0, ["rank", "rank"]), os.environ["PATH"]


def test_weights_are_compared_bit_by_bit(tmp_path: Path) -> None:
    for name, values in {"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, np.nextafter(2, 3)]}.items():
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "model.npz", w=values)
    assert batch_jobs.same_weights(tmp_path / "a", tmp_path / "b")
    assert not batch_jobs.same_weights(tmp_path / "a", tmp_path / "c")
