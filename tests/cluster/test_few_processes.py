"""An idle notebook has few processes: what each costs is paid by every student of a class."""

from __future__ import annotations

from collections import Counter

import psutil
import pytest

from mpiwatch.processes import LINUX
from tests.cluster_fixtures import Kernel, World, is_mpiexec

pytestmark = pytest.mark.clusters

CONNECT = "from labkit.cluster import connect\nrc = connect(4)"


def kind(process: psutil.Process) -> str:
    """Return what a process of a notebook is."""
    words = process.cmdline()
    if any(word.endswith("supervisor.py") for word in words):
        return "supervisor"
    if is_mpiexec(process) or process.name() == "hydra_pmi_proxy":
        return "launcher"
    if any(word.endswith("forking.py") for word in words):
        return "stand-in"
    return next((word for word in words if word.startswith("labkit.")), " ".join(words))


def kinds(world: World, kernel: Kernel) -> Counter[str]:
    """Return how many processes of each kind a notebook has, without its kernel."""
    return Counter(kind(process) for process in world.processes() if process.pid != kernel.pid)


@pytest.mark.skipif(not LINUX, reason="elsewhere, ranks are not forked")
def test_the_controller_is_one_process(world: World, kernel: Kernel) -> None:
    """Its schedulers and the heart monitor were eight more."""
    assert "4 ranks" in kernel.run(CONNECT)
    kernel.run("%px pass")
    assert kinds(world, kernel)["labkit.cluster.adapter.controller"] == 1
    # Views of all kinds work.
    kernel.run("one_each = rc.load_balanced_view()\nall_at_once = rc.broadcast_view()")
    assert "[0, 1, 4]" in kernel.run("one_each.map_sync(lambda x: x * x, range(3))")
    assert "[7, 7, 7, 7]" in kernel.run("all_at_once.apply_sync(lambda: 7)")
