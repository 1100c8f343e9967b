"""No process, no file and no segment is left, whichever process started engines and however it ends."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import ipyparallel as ipp
import psutil
import pytest

from tests.cluster_fixtures import Kernel, Start, World, wait_until
from tests.conftest import thorough

pytestmark = pytest.mark.clusters

CONNECT = "from labkit.cluster import connect\nrc = connect({n})"
RAW_DEADLOCK = "from mpi4py import MPI\nif rank == 0:\n    MPI.Intracomm(MPI.COMM_WORLD).Barrier()"


def test_engines_end_with_a_killed_kernel(world: World, kernel: Kernel, tmp_path: Path) -> None:
    """One rank is in a deadlock, one computes, one is idle."""
    said = kernel.run(CONNECT.format(n=3))
    assert "3 ranks, one MPI world" in said, said
    here = f"open(f'{tmp_path}/rank{{rank}}', 'w').close()"
    said = kernel.run(f"%%px --noblock\n{here}\n{RAW_DEADLOCK}\nwhile rank == 1:\n    pass")
    wait_until(lambda: len(list(tmp_path.glob("rank*"))) == 3, f"all ranks in the cell: {said}")
    kernel.manager.signal_kernel(signal.SIGKILL)
    world.wait_until_empty()


@pytest.mark.thorough
def test_engines_that_are_starting_end_with_a_killed_kernel(world: World, kernel: Kernel) -> None:
    kernel.start(CONNECT.format(n=2))
    wait_until(
        lambda: any("labkit.cluster.adapter.engine" in command for command in world.commands()),
        "engines are starting",
    )
    kernel.manager.signal_kernel(signal.SIGKILL)
    world.wait_until_empty()


def test_idle_engines_end_with_a_kernel_that_shuts_down(world: World, kernel: Kernel) -> None:
    kernel.run(CONNECT.format(n=2))
    kernel.manager.shutdown_kernel()
    world.wait_until_empty()


@pytest.mark.parametrize("signum", [signal.SIGINT, thorough(signal.SIGTERM), signal.SIGKILL])
def test_engines_in_a_deadlock_end_with_ipcluster(
    world: World, ipcluster: Start, signum: signal.Signals
) -> None:
    process = ipcluster("--engines=MPI", "-n", "2")
    (file,) = world.folder.glob("profile_*/security/cluster-*.json")
    client = ipp.Cluster.from_file(str(file), parent=None).connect_client_sync()
    client.wait_for_engines(2, timeout=120, interactive=False)
    rank = "from mpi4py import MPI\nrank = MPI.COMM_WORLD.rank"
    client[:].execute(rank, block=True)
    client[:].execute(RAW_DEADLOCK, block=False)
    engines = [each for each in world.processes() if "labkit.cluster.adapter.engine" in each.cmdline()]
    busy = {each.pid: sum(each.cpu_times()[:2]) for each in engines}
    wait_until(lambda: any(sum(each.cpu_times()[:2]) > busy[each.pid] for each in engines), "a rank waits")
    client.close()
    process.send_signal(signum)
    process.wait()
    world.wait_until_empty()


@pytest.mark.parametrize("role", [thorough("controller"), "engines"])
def test_everything_ends_after_a_supervisor_was_killed(world: World, kernel: Kernel, role: str) -> None:
    kernel.run(CONNECT.format(n=2))
    kernel.run(f"%%px --noblock\n{RAW_DEADLOCK}")
    killed = 0
    for process in world.processes():
        with suppress(psutil.Error):
            words = process.cmdline()
            if any(word.endswith("supervisor.py") for word in words) and role in words:
                process.kill()
                killed += 1
    assert killed == 1
    kernel.manager.signal_kernel(signal.SIGKILL)
    wait_until(lambda: not world.processes(), "all processes gone")
