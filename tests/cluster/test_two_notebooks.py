"""A notebook has engines of its own; those of a cluster that a person has started belong to one kernel."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from labkit.cluster.clusters import described
from mpiwatch.processes import alive
from tests.cluster.shared import world
from tests.cluster_fixtures import Kernel, Start, World, clusters, wait_until

pytestmark = pytest.mark.clusters

__all__ = ["world"]
CONNECT = "from labkit.cluster import connect\nrc = connect(2)"
NAMED = ("--engines=MPI", "-n", "2", "--cluster-id=mine")
ATTACHED = r"\bconnected to the running cluster mine, up since \d\d:\d\d\)"


@pytest.fixture
def first(world: World) -> Iterator[Kernel]:
    kernel = Kernel(world)
    yield kernel
    kernel.end()


@pytest.fixture
def second(world: World) -> Iterator[Kernel]:
    kernel = Kernel(world)
    yield kernel
    kernel.end()


@pytest.fixture
def ipcluster(world: World) -> Iterator[Start]:
    yield from clusters(world)
    is_there = lambda: any(path.endswith("cluster-mine.json") for path in world.cluster_files())  # noqa: E731
    wait_until(lambda: not is_there(), "the cluster has ended", 40)


def test_two_notebooks_have_engines_of_their_own(first: Kernel, second: Kernel) -> None:
    for kernel, mark in (first, "'first'"), (second, "'second'"):
        assert "cluster started; it ends with this notebook" in kernel.run(CONNECT)
        kernel.run(f"%px mark = {mark}")
    assert "this notebook's cluster" in first.run(CONNECT)
    assert first.run("print(rc[:]['mark'])") == "['first', 'first']\n"
    assert second.run("print(rc[:]['mark'])") == "['second', 'second']\n"


def test_a_persons_cluster_belongs_to_one_kernel_until_that_ends(
    first: Kernel, second: Kernel, ipcluster: Start
) -> None:
    """Nor does a child keep the engines that the kernel has forked, in Python or in C."""
    ipcluster(*NAMED)
    assert re.search(ATTACHED, first.run(CONNECT))
    first.run("%px a = b = c = d = e = f = g = h = rank")
    said = first.run(CONNECT)
    assert "still connected to the running cluster mine" in said and "deleted" not in said, said
    forks = "import ctypes, os, time\nfor fork in os.fork, ctypes.CDLL(None).fork:\n    pid = fork()"
    first.run(f"{forks}\n    if pid == 0:\n        time.sleep(1000)")

    said = second.run(CONNECT)
    assert "cluster started, because another notebook uses the running cluster mine, up since" in said, said
    assert "NameError" in second.run("%px a")
    assert first.run("print(rc[:]['a'])") == "[0, 1]\n"
    children = [
        child.pid for child in psutil.Process(first.pid).children() if "ipykernel_launcher" in child.cmdline()
    ]
    assert len(children) == 2
    try:
        os.kill(first.pid, signal.SIGKILL)  # the kernel alone: the manager would kill its children, too
        wait_until(lambda: not first.manager.is_alive(), "the kernel has ended")
        # It gives up its own engines of the same number only for another number.
        assert "this notebook's cluster" in second.run(CONNECT)
        second.run("rc = connect(1)")
        said = second.run(CONNECT)
        assert re.search(ATTACHED, said), said
        assert "variables of an earlier kernel (a, b, c, d, e, f and 2 more) were deleted" in said, said
        assert "NameError" in second.run("%px a")
        assert all(map(alive, children))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def test_engines_of_a_restarted_kernel_are_cleared(first: Kernel, ipcluster: Start) -> None:
    """JupyterLab says before a restart that all variables will be lost."""
    ipcluster(*NAMED)
    first.run(CONNECT)
    first.run("%px mark = rank")
    first.restart()
    said = first.run(CONNECT)
    assert "The variables of an earlier kernel (mark) were deleted from the ranks." in said, said
    assert "NameError" in first.run("%px mark")
    assert "deleted" not in first.run("%px mark = 1\nrc = connect(2)")
    assert first.run("print(rc[:]['mark'])") == "[1, 1]\n"


def test_ranks_that_an_earlier_kernel_has_left_in_a_deadlock_are_replaced_on_demand(
    first: Kernel, ipcluster: Start
) -> None:
    ipcluster(*NAMED)
    first.run(CONNECT)
    first.run("%%px --noblock\nfrom mpi4py import MPI\nif rank == 0:\n    MPI.Intracomm(comm).Barrier()")
    first.restart()
    said = first.run(CONNECT)
    assert "replace the engines with `rc = connect(n=2, restart=True)`" in said, said
    assert re.search(ATTACHED, first.run("rc = connect(2, restart=True)"))
    assert first.run("%px print(comm.allreduce(1))") == "[ranks 0, 1] 2\n"


def test_a_kernel_that_wants_another_number_lets_others_use_the_cluster(
    first: Kernel, second: Kernel, ipcluster: Start
) -> None:
    ipcluster(*NAMED)
    assert re.search(ATTACHED, first.run(CONNECT))
    assert "cluster started" in first.run("rc = connect(1)")
    assert re.search(ATTACHED, second.run(CONNECT))


def test_a_connect_that_fails_lets_others_use_the_cluster(
    first: Kernel, second: Kernel, ipcluster: Start
) -> None:
    ipcluster(*NAMED)
    first.run("from labkit.cluster import connection as its\nits.install_comm = int")
    assert "TypeError" in first.run(CONNECT)
    assert re.search(ATTACHED, second.run(CONNECT))


def another_environment(folder: Path) -> Path:
    """Make an environment with the same packages; return its folder of programs."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if "site-packages" in path]
    (packages / "all.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in others))
    shutil.copytree(Path(sys.prefix, "etc", "ipython"), folder / "etc" / "ipython")
    for program in Path(sys.prefix, "bin").glob("*"):
        if program.name.startswith(("mpiexec", "hydra", "prte", "mpirun")):
            (folder / "bin" / program.name).symlink_to(program)
    return folder / "bin"


def test_a_cluster_of_another_environment_is_not_used(world: World, first: Kernel, tmp_path: Path) -> None:
    programs = another_environment(tmp_path / "other")
    command = [programs / "python", "-m", "ipyparallel.cluster", "start", *NAMED]
    env = {**world.env, "LD_LIBRARY_PATH": f"{sys.prefix}/lib"}  # its own folder has no MPI
    started = subprocess.Popen(command, env=env, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: any(path.endswith("ipcontroller-mine-engine.json") for path in world.cluster_files()),
            "the other cluster's controller is up",
        )
        said = first.run(CONNECT)
        reason = rf"running cluster mine, up since .*, belongs to another environment \({programs}\)"
        assert re.search(f"cluster started, because the {reason}", said), said
    finally:
        started.kill()
        started.wait()


def test_engines_of_another_environment_are_refused(first: Kernel) -> None:
    first.run(CONNECT)
    said = first.run("import sys\nsys.prefix = '/opt/other'\nrc = connect(2)")
    prefixes = f"rank 0 runs in {sys.prefix}, and this notebook in /opt/other"
    assert f"the engines belong to another environment: {prefixes}" in said, said


@pytest.mark.parametrize("name", ["own", "take_over", "nprocs"])
def test_an_argument_that_connect_does_not_have_is_named_before_anything_is_lost(
    first: Kernel, name: str
) -> None:
    first.run("from labkit.cluster import connect\nrc = connect(1)")
    said = first.run(f"rc = connect(1, {name}=True)")
    assert said.startswith(f"ClusterError: connect() has no argument `{name}`"), said
    assert said.count("\n") == 1, said
    assert "ClusterError: a cluster has at least one rank; n is 0" in first.run("rc = connect(0)")
    assert "[stdout:0] 1" in first.run("%px print(size)")


def test_a_cluster_of_another_day_is_described_with_its_date() -> None:
    assert described("mine", 0.0).startswith("the running cluster mine, up since 01 Jan ")
    assert re.fullmatch(r"the running cluster, up since \d\d:\d\d", described("", time.time()))
