"""connect() attaches to clusters that `ipcluster start` has started. One kernel serves all tests."""

from __future__ import annotations

import pytest

from tests.cluster.shared import kernel, world
from tests.cluster_fixtures import Kernel, Start, World, wait_until

pytestmark = pytest.mark.clusters

__all__ = ["kernel", "world"]
CONNECT = "from labkit.cluster import connect\nrc = connect(2)"
PIDS = "import os\nprint(rc[:].apply_sync(os.getpid))"


@pytest.fixture(autouse=True)
def no_other_process(world: World, kernel: Kernel) -> None:
    """Wait until the cluster of the test before has ended."""
    wait_until(lambda: [each.pid for each in world.processes()] == [kernel.pid], "only the kernel is left")


@pytest.mark.thorough
def test_engines_that_register_while_the_client_connects_are_found(kernel: Kernel, ipcluster: Start) -> None:
    ipcluster("--engines=MPI", "-n", "2")
    kernel.run(
        """import time, zmq, ipyparallel as ipp
from ipyparallel.client import client as module
connect_socket, held_up = module.util.connect, []

def hold_up(socket, *where, **security):
    if socket.type == zmq.SUB and not held_up:  # the client has the list of engines, and gets no news yet
        held_up.append(True)
        while len(ipp.Client().ids) < 2:
            time.sleep(0.1)
    return connect_socket(socket, *where, **security)

module.util.connect = hold_up"""
    )
    assert "2 ranks, one MPI world" in kernel.run(CONNECT)
    assert "[True]" in kernel.run("module.util.connect = connect_socket\nheld_up")


def test_engines_of_ipcluster_outlive_the_kernel(world: World, kernel: Kernel, ipcluster: Start) -> None:
    """Engines that connect() has revived do so, too."""
    started = ipcluster("--engines=MPI", "-n", "2")
    assert "connected to the running cluster" in kernel.run(CONNECT)
    # With the default period of 3 s, revived engines would take that long to register.
    assert any("--HeartMonitor.period=100" in command for command in world.commands())
    engines = kernel.run(PIDS)
    kernel.restart()
    assert "connected to the running cluster" in kernel.run(CONNECT)
    assert kernel.run(PIDS) == engines

    # ipcluster takes engines that end before it prints this line for engines that failed to start.
    assert started.stdout and any("started successfully" in line for line in started.stdout)
    kernel.run("%px import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "connected to the running cluster" in kernel.run(CONNECT)
    revived = kernel.run(PIDS)
    assert revived != engines
    kernel.restart()
    assert "connected to the running cluster" in kernel.run(CONNECT)
    assert kernel.run(PIDS) == revived


def test_worlds_of_one_rank_are_an_error_that_names_its_cause(kernel: Kernel, ipcluster: Start) -> None:
    # The last test of this file: these engines end only half a minute after their controller was killed.
    ipcluster("--engines=local", "-n", "2")
    output = kernel.run(CONNECT)
    assert "ClusterError: the 2 engines are 2 MPI worlds of one rank each" in output
    assert "LocalEngineSetLauncher" in output
