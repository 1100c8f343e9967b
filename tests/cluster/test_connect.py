"""connect() starts a cluster, finds it again, checks it and recovers it.

One kernel serves all tests of this file: each of them leaves it able to connect, which is part of what they
test. Tests of clusters that `ipcluster` starts are in test_ipcluster.py.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psutil
import pytest

from labkit import forking
from labkit.cluster import ranks
from labkit.cluster.connection import RankInfo, has_other_ids
from mpiwatch.processes import start_time
from tests.cluster.shared import kernel, world
from tests.cluster_fixtures import DEADLINE_S, Kernel, World, by_rank, wait_until
from tests.conftest import thorough

pytestmark = pytest.mark.clusters

__all__ = ["kernel", "world"]
CONNECT = "from labkit.cluster import connect\nrc = connect({n})"
SHOW_NAMES = "%px print(rank, size, comm.rank, np.__name__)"


def lines_of_ranks(output: str) -> list[str]:
    return re.findall(r"^(?:\[stdout:\d+\] )?(\d.*)$", by_rank(output), re.MULTILINE)


def assert_ranks_work(kernel: Kernel, n: int) -> None:
    """Check that n ranks have the student's names, and can communicate."""
    expected = [f"{rank} {n} {rank} numpy" for rank in range(n)]
    assert sorted(lines_of_ranks(kernel.run(SHOW_NAMES))) == sorted(expected)
    kernel.run("%px total = comm.allreduce(rank)")
    assert kernel.run("print(rc[:]['total'])") == f"{[n * (n - 1) // 2] * n}\n"


@pytest.mark.parametrize("n", [1, thorough(2), thorough(5), thorough(64), 32, 3])
def test_a_world_of_n_ranks_replaces_one_of_another_size(kernel: Kernel, n: int) -> None:
    output = kernel.run(CONNECT.format(n=n))
    assert f"{n} rank{'s' * (n > 1)}, one MPI world, engine id = rank" in output
    assert "cluster started" in output
    assert_ranks_work(kernel, n)
    kernel.run("%px import os; threads = os.environ['OMP_NUM_THREADS']")
    assert "this notebook's cluster" in kernel.run(CONNECT.format(n=n))
    assert kernel.run("print(rc[:]['threads'])") == f"{['1'] * n}\n"


def test_engines_survive_an_interrupt(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(CONNECT.format(n=3))
    message = kernel.start(f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\nwhile True: pass")
    wait_until(lambda: len(list(tmp_path.iterdir())) == 3, "all ranks in their loop")
    kernel.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in kernel.finish(message)
    assert_ranks_work(kernel, 3)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.system(f'kill -9 {os.getpid()}')", r"was killed by signal 9 \(SIGKILL\), and"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"sent itself SIGKILL at cell line 4: .*;"),
        pytest.param("os._exit(3)", r"called os\._exit\(3\) at cell line 4: .*;", marks=pytest.mark.thorough),
        pytest.param("os._exit(0)", r"called os\._exit\(0\) at cell line 4: .*;", marks=pytest.mark.thorough),
    ],
)
def test_a_death_is_reported_with_its_rank_and_connect_revives_the_ranks(
    kernel: Kernel, end: str, how: str
) -> None:
    kernel.run(CONNECT.format(n=3))
    output = kernel.run(f"%%px\nimport os, signal\nif rank == 2:\n    {end}\ncomm.Barrier()")
    assert re.search(rf"RankDied: rank 2 {how} MPI ended the other ranks", output), output
    assert "RankDied: rank 2" in kernel.run("%px print(rank)")
    assert "3 ranks, one MPI world" in kernel.run("rc = connect(3)")
    assert_ranks_work(kernel, 3)


@pytest.mark.thorough
def test_ranks_that_mpi_does_not_end_after_a_death_are_replaced(world: World, kernel: Kernel) -> None:
    kernel.run(CONNECT.format(n=3))
    stand_ins = [each for each in world.processes() if each.cmdline()[1:4] == forking.stand_in()[1:4]]
    starters = {each.parent() for each in stand_ins}
    assert starters
    for starter in starters:  # a process of mpiexec that stands still does not notice a death
        starter.suspend()
        wait_until(lambda starter=starter: starter.status() == psutil.STATUS_STOPPED, "mpiexec is stopped")
    assert "RankDied: rank 1" in kernel.run("%%px\nimport os\nif rank == 1:\n    os._exit(0)")
    assert "3 ranks, one MPI world" in kernel.run("rc = connect(3)")
    assert_ranks_work(kernel, 3)


def test_restart_replaces_engines_in_a_deadlock(kernel: Kernel) -> None:
    kernel.run(CONNECT.format(n=3))
    kernel.run("%%px --noblock\nfrom mpi4py import MPI\nif rank > 0:\n    MPI.Intracomm(comm).Barrier()")
    output = kernel.run("rc = connect(3)")
    assert "ClusterError: 3 engines are registered, but not all answered" in output, output
    assert "3 ranks, one MPI world" in kernel.run("rc = connect(3, restart=True)")
    assert_ranks_work(kernel, 3)
    kernel.run("%px import os; os._exit(1)")
    wait = f"import time\nuntil_s = time.monotonic() + {DEADLINE_S}\n"
    wait += "while rc.ids and time.monotonic() < until_s:\n    time.sleep(0.01)"
    kernel.run(wait)
    assert "3 ranks, one MPI world" in kernel.run("rc = connect(3, restart=True)")  # without engines, too


def test_other_ids_than_ranks_are_recognised() -> None:
    """The controller gives an engine another id while that of its rank belongs to one that has just died."""

    def world(*ranks: int, size: int = 3) -> list[RankInfo]:
        return [RankInfo(rank, size, 0, "", "", "", "") for rank in ranks]

    assert has_other_ids(world(0, 1, 3, 2, size=4))
    assert not has_other_ids(world(0, 1, 2))
    assert not has_other_ids(world(0, 0, 0, size=1))


def test_a_rank_that_ends_while_its_process_is_looked_up_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    children = [subprocess.Popen(["sleep", str(DEADLINE_S)]) for _ in range(2)]
    infos = [
        RankInfo(rank, 2, child.pid, start_time(child.pid), "", "", "") for rank, child in enumerate(children)
    ]

    def start_time_and_end(pid: int) -> str:
        started = start_time(pid)
        if pid == children[1].pid:
            children[1].kill()
            children[1].wait()
        return started

    monkeypatch.setattr(ranks, "start_time", start_time_and_end)
    assert {rank: process.pid for rank, process in ranks.processes_here(infos).items()} == {
        0: children[0].pid
    }
    children[0].kill()
    children[0].wait()


def test_a_lost_request_is_sent_again(kernel: Kernel) -> None:
    kernel.run(
        """import ipyparallel as ipp
send, lost = ipp.Client.send_apply_request, []

def lose_one(client, socket, function, *arguments, ident=None, **more):
    if not lost:  # a queue drops messages to engines that it does not know (yet)
        lost.append(ident)
        ident = b"nobody"
    return send(client, socket, function, *arguments, ident=ident, **more)

ipp.Client.send_apply_request = lose_one"""
    )
    assert "3 ranks, one MPI world" in kernel.run(CONNECT.format(n=3))
    assert kernel.run("ipp.Client.send_apply_request = send\nprint(len(lost))") == "1\n"


def test_a_failed_connect_leaves_no_cluster_running(world: World, kernel: Kernel) -> None:
    """As when the engines' Python has no `labkit`, or an older one."""
    kernel.run(
        "from labkit.cluster import connection as its\ninstall, its.install_comm = its.install_comm, int"
    )
    assert "TypeError" in kernel.run(CONNECT.format(n=4))
    wait_until(lambda: len(world.processes()) == 1, "only the kernel is left", 40)
    kernel.run("its.install_comm = install")
    assert "cluster started" in kernel.run("rc = connect(4)")


@pytest.mark.thorough
def test_a_controller_that_cannot_start_says_why(world: World, kernel: Kernel) -> None:
    settings = world.folder / "profile_default" / "ipcontroller_config.py"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("get_config().IPController.ports = [70_000]\n")
    output = kernel.run(CONNECT.format(n=2))
    settings.unlink()
    assert re.search(r"controller has ended: .*70000.*Call connect\(\) again", output), output
    wait_until(lambda: len(world.processes()) == 1, "only the kernel is left")
    assert "cluster started" in kernel.run("rc = connect(2)")
