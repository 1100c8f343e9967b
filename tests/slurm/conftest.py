"""One SLURM for all tests of this folder; each test leaves its queue empty."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_fixtures import Kernel, World, a_world
from tests.slurm import local_cluster
from tests.slurm.local_cluster import LocalCluster

# All nodes are this machine, so both MPIs use its loopback interface.
LOOPBACK = {"FI_TCP_IFACE": "lo", "UCX_NET_DEVICES": "lo", "OMPI_MCA_btl_tcp_if_include": "lo"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalCluster]:
    """Start a SLURM; skip if this machine cannot."""
    if why := local_cluster.missing():
        pytest.skip(f"SLURM cannot run here: {why}")
    with local_cluster.running() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def environment(slurm: LocalCluster) -> dict[str, str]:
    """Return the variables of a shell in which the lab's environment is active, for this SLURM."""
    own = Path(sys.executable).parent
    path = f"{own}:{os.environ['PATH']}"
    return {**os.environ, **LOOPBACK, **AS_ROOT, **slurm.environment, "PATH": path}


@pytest.fixture(scope="module")
def world(
    slurm: LocalCluster, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A profile folder whose notebooks use the profile `slurm`, by environment variables alone."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "slurm.ini").write_text("[slurm]\nnodes = 4\n")
    for world in a_world(folder / "ipython"):
        world.env.update(environment)
        world.env.update(LABKIT_PROFILE="slurm", LABKIT_SLURM=str(folder / "slurm.ini"))
        world.env["IPYTHONDIR"] = str(folder / "ipython")
        yield world
    empty_queue(slurm)


@pytest.fixture
def kernel(world: World) -> Iterator[Kernel]:
    """A kernel of its own for each test, which a test may kill."""
    kernel = Kernel(world)
    yield kernel
    kernel.end()


def empty_queue(slurm: LocalCluster) -> None:
    while jobs := slurm.jobs():
        slurm.command("scancel", *jobs)
        time.sleep(0.2)
