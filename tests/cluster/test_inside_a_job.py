"""Jupyter itself may run in a batch job: ranks of this machine are started on this machine all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpiwatch.processes import without_job
from tests.cluster_fixtures import Kernel, World

LABKIT = str(Path(sys.prefix, "bin", "labkit"))
# A job of two nodes that are not there, with one task on each. `{hosts}`: a file that names the nodes.
JOBS = {
    "SLURM": {
        "SLURM_JOB_ID": "7",
        "SLURM_JOBID": "7",
        "SLURM_NODELIST": "n[1-2]",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURMD_NODENAME": "n1",
        "HYDRA_BOOTSTRAP": "slurm",
        "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher",
    },
    "PBS": {"PBS_JOBID": "7", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "{hosts}"},
    "LSF": {
        "LSB_JOBID": "7",
        "LSB_HOSTS": "n1 n2",
        "LSB_MCPU_HOSTS": "n1 1 n2 1",
        "LSB_DJOB_HOSTFILE": "{hosts}",
        "LSB_AFFINITY_HOSTFILE": "{hosts}",
    },
    "Grid Engine": {
        "JOB_ID": "7",
        "SGE_ROOT": "/opt/sge",
        "ARC": "lx-amd64",
        "PE_HOSTFILE": "{hosts}",
        "NSLOTS": "2",
    },
}
PROGRAM = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1))"


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return the variables of a job."""
    hosts = tmp_path / "hosts"
    hosts.write_text("n1 1 all.q@n1 UNDEFINED\nn2 1 all.q@n2 UNDEFINED\n")
    return {name: value.format(hosts=hosts) for name, value in JOBS[request.param].items()}


def test_labkit_run_starts_its_ranks_on_this_machine(job: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [LABKIT, "run", "-n", "3", str(program)]
    done = subprocess.run(
        command, env=os.environ | job, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "3\n" * 3), done


@pytest.mark.clusters
def test_connect_and_check_start_their_ranks_on_this_machine(job: dict[str, str], world: World) -> None:
    world.env.update(job)
    kernel = Kernel(world)
    try:
        said = kernel.run("from labkit.cluster import connect\nrc = connect(3)")
        assert "3 ranks, one MPI world" in said, said
        # Jupyter's own job is still the notebook's.
        assert kernel.run(f"import os\nprint({set(job)} <= os.environ.keys())") == "True\n"
        kernel.run("%%px\nfrom labkit.exercises import check\ndef broadcast(comm, value):\n    return value")
        assert "broadcast: not correct yet" in kernel.run("%px broadcast = check(broadcast)")
    finally:
        kernel.end()


def test_settings_of_users_and_sites_are_no_variables_of_a_job() -> None:
    settings = {
        "SLURM_CONF": "/etc/slurm.conf",
        "PMIX_MCA_gds": "hash",
        "HYDRA_LAUNCHER": "fork",
        "PATH": "/",
    }
    assert without_job({**settings, **JOBS["SLURM"], "PMI_RANK": "0", "PMIX_RANK": "0"}) == settings
