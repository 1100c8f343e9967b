"""An idle notebook has few processes: what each costs is paid by every student of a class."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import psutil
import pytest

from mpiwatch.processes import LINUX
from tests.cluster_fixtures import Kernel, World, is_mpiexec, wait_until

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


@pytest.mark.skipif(not LINUX, reason="elsewhere, ranks are not forked")
def test_engines_without_nannies_take_signals_and_their_end_is_noticed(world: World, kernel: Kernel) -> None:
    assert "4 ranks" in kernel.run(CONNECT)
    assert kinds(world, kernel)["labkit.cluster.adapter.engine"] == 5  # the ranks, and what forks them
    kernel.run("%%px\nfrom signal import *\nnoted = []\nsignal(SIGUSR1, lambda *_: noted.append(rank))")
    kernel.run("rc.send_signal('SIGUSR1', targets=[1, 3], block=True)")
    assert kernel.run("%px print(noted)") == "[stdout:0] []\n[stdout:1] [1]\n[stdout:2] []\n[stdout:3] [3]\n"
    kernel.run("rc.send_signal('SIGKILL', targets=[2])")
    said = kernel.run("%%px\nwhile True:\n    comm.Barrier()")
    assert "RankDied: rank 2 was killed by signal 9" in said, said


# Compiled code that holds Python's lock: no other thread of the rank can run.
HOLDS = "%%px\nimport ctypes, signal\n{}open(f'{}/{{rank}}', 'w').close()\nctypes.PyDLL(None).sleep(600)"


def test_ranks_that_let_no_other_thread_run_are_interrupted_or_ended(kernel: Kernel, tmp_path: Path) -> None:
    assert "4 ranks" in kernel.run(CONNECT)
    for ignored, expected in (
        ("", "the cell was stopped"),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)\n", "the engines were ended"),
    ):
        message = kernel.start(HOLDS.format(ignored, tmp_path))
        wait_until(lambda: len(list(tmp_path.glob("[0-3]"))) == 4, "all ranks in the cell")
        kernel.manager.interrupt_kernel()
        said = kernel.finish(message)
        assert re.search(expected, said), said
        for file in tmp_path.glob("[0-3]"):
            file.unlink()
    assert "4 ranks" in kernel.run(CONNECT)
