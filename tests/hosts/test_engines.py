"""connect(profile="hosts"): engines on hosts work and end like engines on this machine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from labkit import hosts
from labkit.hosts.namespaces import FOLDER
from tests.cluster_fixtures import Kernel, World, kernel, wait_until, world

pytestmark = pytest.mark.clusters

__all__ = ["kernel", "world"]
CONNECT = "from labkit.cluster import connect\nrc = connect(3, profile='hosts')"


@pytest.fixture(autouse=True)
def hosts_of_the_test(folder: Path, world: World) -> None:
    """Let kernels use the test's hosts."""
    world.env[FOLDER] = str(folder)


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_socket()]


def test_connect_starts_revives_and_ends_engines_on_hosts(folder: Path, world: World, kernel: Kernel) -> None:
    assert "HostsError: no hosts are up; `labkit hosts up`" in kernel.run(CONNECT)
    hosts.up(3)
    assert "HostsError: 4 ranks do not fit on 3 hosts" in kernel.run("connect(4, profile='hosts')")
    assert "there is no profile 'host'; the profiles are mpi, hosts" in kernel.run("connect(profile='host')")

    output = kernel.run(CONNECT)
    assert "3 ranks, one MPI world" in output and "on lab0, lab1, lab2" in output
    before = hosts.counters()
    kernel.run("%%px\nimport socket\nsum = np.ones(2**18, np.float32)\ncomm.Allreduce(sum.copy(), sum)")
    kernel.run("%px mine = rank, socket.gethostname(), float(sum[0])")
    assert kernel.run("print(rc[:]['mine'])") == "[(0, 'lab0', 3.0), (1, 'lab1', 3.0), (2, 'lab2', 3.0)]\n"
    after = hosts.counters()
    assert sum(after[name].sent - before[name].sent for name in after) > 2 * 2 * 2**20

    output = kernel.run("%%px\nif rank == 0: comm.Barrier()")
    assert "rank 0 is waiting in Barrier" in output and "ranks 1, 2 never joined" in output

    assert "this notebook's cluster" in kernel.run(CONNECT)
    output = kernel.run("%%px\nimport os\nif rank == 1: os._exit(0)\ncomm.Barrier()")
    assert "RankDied: rank 1 called os._exit(0) at cell line 3" in output
    assert "on lab0, lab1, lab2" in kernel.run(CONNECT)

    kernel.run("%%px --noblock\nif rank == 0: comm.Barrier()")
    kernel.manager.signal_kernel(signal.SIGKILL)
    world.wait_until_empty()
    wait_until(lambda: not sockets(folder), "no socket left")
    assert len(hosts.running().hosts) == 3


def test_one_kernel_connects_to_hosts_and_then_to_this_machine(
    folder: Path, world: World, kernel: Kernel
) -> None:
    hosts.up(2)
    kernel.run("from labkit.cluster import connect\nrc = connect(2, profile='hosts')")
    output = kernel.run("rc = connect(2)")
    assert "cluster started" in output and "lab0" not in output
    kernel.manager.signal_kernel(signal.SIGKILL)
    world.wait_until_empty()
    assert not sockets(folder)
