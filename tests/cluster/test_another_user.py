"""Other users of the machine learn nothing of a cluster's cells: not from its ports, nor from its files."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from tests.cluster_fixtures import STRANGER, Kernel, Start, World, is_mpiexec

pytestmark = pytest.mark.clusters


def listening(world: World) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return the addresses on which a world's launcher listens, and those of its other processes."""
    launchers, others = set(), set()
    for process in world.processes():
        found = {
            (each.laddr.ip, each.laddr.port)
            for each in process.net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        }
        (launchers if is_mpiexec(process) else others).update(found)
    return launchers, others - launchers  # ranks inherit a socket of MPICH's mpiexec


def test_a_client_without_the_key_hears_nothing_on_any_port(
    world: World, kernel: Kernel, ipcluster: Start
) -> None:
    ipcluster("--engines=MPI", "-n", "2")
    output = kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    assert "connected to the running cluster" in output
    launchers, others = listening(world)
    assert others and {host for host, _ in others} == {"127.0.0.1"}
    ports = [str(port) for _, port in sorted(launchers | others)]
    said = kernel.start("%%px\nimport time\nwhile True:\n    print('said')\n    time.sleep(0.05)")
    stranger = [sys.executable, "-c", STRANGER, "127.0.0.1", *ports]
    heard = subprocess.run(stranger, capture_output=True, text=True, timeout=120, check=True).stdout
    kernel.manager.interrupt_kernel()
    assert kernel.finish(said).count("said\n") > 2
    assert heard == f"asked {len(ports)}\n"


def test_another_user_cannot_open_the_files_of_a_cluster(world: World, kernel: Kernel) -> None:
    assert "2 ranks" in kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    recorder = kernel.run("print(get_ipython().magics_manager.registry['RankMagics'].ranks.recorder.path)")
    paths = [*world.cluster_files(), recorder.strip()]
    assert len(paths) >= 4
    assert {oct(os.stat(path).st_mode & 0o077) for path in paths if "cluster-" not in path} == {"0o0"}
