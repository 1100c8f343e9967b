"""connect() with the profile `slurm`: engines in a job, and what the notebook says when the job ends."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cluster_fixtures import Kernel, World, wait_until
from tests.slurm.local_cluster import LocalCluster

# The notebook asks for the profile `mpi`, but the environment variable LABKIT_PROFILE overrides it.
CONNECT = "from labkit.cluster import connect\nrc = connect(n=4, profile='mpi')"
LOOP = """%%px
import pathlib
x = np.ones(1000)
comm.Allreduce(x.copy(), x)
pathlib.Path({marks!r}, str(rank)).touch()
while True:
    comm.Allreduce(x.copy(), x)
    x /= size
"""


@pytest.fixture
def connected(kernel: Kernel) -> Iterator[Kernel]:
    """A kernel that has connected to four engines."""
    output = kernel.run(CONNECT)
    assert "4 ranks, one MPI world" in output and "on n1, n2, n3, n4;" in output, output
    yield kernel


def answer_after(kernel: Kernel, fault: Callable[[], object]) -> str:
    """Return the output of an endless cell that a fault ends; print how long that took."""
    with TemporaryDirectory() as marks:  # the nodes share this machine's disk
        message = kernel.start(LOOP.format(marks=marks))
        wait_until(lambda: len(os.listdir(marks)) == 4, "each rank has left its mark", 60)
    began = time.monotonic()
    fault()
    output = kernel.finish(message)
    took_s = time.monotonic() - began
    print(f"{took_s:.1f} s: {output}")
    return output


def test_engines_are_one_world_and_their_ids_are_the_ranks(
    connected: Kernel, slurm: LocalCluster, world: World
) -> None:
    connected.run("%px import os; node = os.environ['SLURMD_NODENAME']; total = comm.allreduce(rank)")
    assert connected.run("print(rc.ids, rc[:]['rank'], rc[:]['node'], rc[:]['total'])") == (
        "[0, 1, 2, 3] [0, 1, 2, 3] ['n1', 'n2', 'n3', 'n4'] [6, 6, 6, 6]\n"
    )
    assert len(slurm.jobs()) == 1
    # The connection files hold the controller's key.
    files = [Path(path) for path in world.cluster_files() if "ipcontroller" in path]
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {stat.S_IMODE(file.parent.stat().st_mode) for file in files} == {0o700}
    # The lab leaves no script in the notebook's folder.
    assert not list(Path.cwd().glob("*.sbatch"))
    output = connected.run("%%px\nif rank != 2:\n    comm.Barrier()")
    assert "rank 2 never" in output and "HangError" in output
    assert "this notebook's cluster" in connected.run(CONNECT)


def test_a_hang_is_reported_to_a_notebook_that_shares_no_memory_with_the_ranks(
    world: World, slurm: LocalCluster
) -> None:
    world.env["MPIWATCH_SEPARATE_MACHINES"] = "1"  # each node counts as a machine of its own
    kernel = Kernel(world)
    try:
        assert "on n1, n2, n3, n4;" in kernel.run(CONNECT)
        # Hide the flight recorder, as if it were on another machine.
        kernel.run("get_ipython().magics_manager.registry['RankMagics'].ranks.recorder = None")
        output = kernel.run("%%px\nif rank != 2:\n    comm.Barrier()")
        assert re.search(r"HangError: rank 2 \(host n3\) never joined collective #1 \(Barrier\)", output), (
            output
        )
        assert "Barrier" in kernel.run("import labkit.cluster\nprint(labkit.cluster.last_hang())")
    finally:
        del world.env["MPIWATCH_SEPARATE_MACHINES"]
        kernel.end()
    wait_until(lambda: not slurm.jobs(), "the queue is empty", 60)


def test_a_killed_engine_is_named_and_the_next_connect_works(connected: Kernel) -> None:
    (pid,) = map(int, re.findall(r"\d+", connected.run("print(rc[2].apply_sync(__import__('os').getpid))")))
    output = answer_after(connected, lambda: os.kill(pid, signal.SIGKILL))
    assert "RankDied: rank 2 was killed by signal 9 (SIGKILL), and MPI ended the other ranks" in output
    output = connected.run("%%px\nimport os\nif rank == 1: os._exit(3)\ncomm.Barrier()")
    assert "connect()" in output  # there are no ranks
    assert "on n1, n2, n3, n4;" in connected.run(CONNECT)
    output = connected.run("%%px\nimport os\nif rank == 1: os._exit(3)\ncomm.Barrier()")
    assert "RankDied: rank 1 called os._exit(3) at cell line 3" in output


def test_a_job_that_someone_cancels_is_named_as_cancelled(connected: Kernel, slurm: LocalCluster) -> None:
    (job,) = slurm.jobs()
    output = answer_after(connected, lambda: slurm.command("scancel", job))
    assert f"RankDied: SLURM job {job} was cancelled." in output


def test_a_lost_node_is_named(connected: Kernel, slurm: LocalCluster) -> None:
    output = answer_after(connected, lambda: slurm.lose_node("n3"))
    assert "has lost node n3 with rank 2" in output
    slurm.return_node("n3")


def test_more_ranks_than_the_partition_has_are_refused_at_once(kernel: Kernel, slurm: LocalCluster) -> None:
    output = kernel.run("from labkit.cluster import connect\nrc = connect(64)")
    assert "ClusterError: SLURM job" in output and "is pending: PartitionConfig" in output
    assert "It can never start" in output
    wait_until(lambda: not slurm.jobs(), "the queue is empty", 30)


def test_the_stop_button_cancels_a_pending_job(
    kernel: Kernel, slurm: LocalCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    blocking = subprocess.run(
        ["sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap", "sleep 600"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    try:
        wait_until(lambda: "RUNNING" in slurm.command("squeue", "-h", "-o", "%T"), "the other job runs", 30)
        message = kernel.start(CONNECT)
        # Interrupt as soon as the job is in the queue; the notebook may not know its number yet.
        wait_until(lambda: len(slurm.jobs()) == 2, "the engines' job is in the queue", 60)
        kernel.manager.interrupt_kernel()
        output = kernel.finish(message)
        assert "KeyboardInterrupt" in output and "has been cancelled" in output
        assert slurm.jobs() == [blocking]
    finally:
        slurm.command("scancel", blocking)


def test_the_job_ends_with_a_killed_kernel(connected: Kernel, slurm: LocalCluster, world: World) -> None:
    assert slurm.jobs()
    connected.manager.signal_kernel(signal.SIGKILL)
    wait_until(lambda: not slurm.jobs(), "the queue is empty", 40)
    wait_until(lambda: not world.processes(), "all processes are gone", 40)
    assert world.cluster_files() == []
