"""Whatever guards a cell, a cluster or a check survives the faults of what it looks at.

Each loop names its calls in STEPS. Each of them in turn raises an error each time (`error`), or in its first
calls only (`often`), or takes seconds (`delay`), and what the loop guards is still done: a hang is reported
and the session goes on, a killed kernel leaves nothing behind, the verdict of a check comes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit import forked_ranks, forking
from labkit.checks import judging, launching
from labkit.cluster import supervisor
from labkit.cluster.adapter import controller
from labkit.cluster.live_view import LiveView
from labkit.cluster.magics import RankMagics
from labkit.cluster.ranks import Ranks
from mpiwatch import launch, processes
from mpiwatch.processes import is_mpich
from tests.cluster_fixtures import Kernel, World, a_world, wait_until
from tests.conftest import PROGRAMS, thorough
from tests.programs.faulty import CALLS, FAULT, Fault

pytestmark = [pytest.mark.clusters, pytest.mark.skipif(not processes.LINUX, reason="forks are Linux's")]

ROOT = PROGRAMS.parent.parent
KINDS = "error", "often", "delay"
AT_ONCE = 2  # checks, clusters
LIMIT_S = 45.0  # of a report on a busy machine: a hang without a guardian lasts for good


def faults(where: str, module: str, owner: str, steps: tuple[str, ...], essential: str = "") -> list[Fault]:
    """Return a loop's faults. `essential`: steps without which nothing can be done, so no error each time."""
    return [
        Fault(where, module, owner, step, kind)
        for step in steps
        for kind in KINDS
        if kind != "error" or step not in essential.split()
    ]


def some_by_default(all_faults: list[Fault], every: int) -> list[object]:
    """Mark all but a part of the faults as thorough."""
    return [fault if number % every == 0 else thorough(fault) for number, fault in enumerate(all_faults)]


# In the notebook's kernel: one kernel and its ranks for all

IN_KERNEL = [
    *faults("kernel", "labkit.cluster.magics", "RankMagics", RankMagics.STEPS, "look_at_ranks show_output"),
    *faults("kernel", "labkit.cluster.ranks", "Ranks", Ranks.STEPS, "interrupt kill"),
    *faults("kernel", "labkit.cluster.live_view", "LiveView", LiveView.STEPS),
]
CONNECT = "from labkit.cluster import connect\nrc = connect(2, deadline_s=1)"
INJECT = """
import importlib
from tests.programs import faulty
owner = getattr(importlib.import_module("{0.module}"), "{0.owner}")
plain, noted = owner.{0.step}, []
owner.{0.step} = faulty.faulty(plain, "{0.kind}", lambda: noted.append(1))
"""
HANG = (
    "%%px --progress-after 0.1\nimport time\nif rank:\n    comm.Barrier()\nwhile True:\n    time.sleep(0.01)"
)
DEAF = (
    "%%px\nimport signal\nif rank == 0:\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "    while True:\n        time.sleep(0.01)\ncomm.Barrier()"
)
MISSING = "rank 0 never joined collective"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    for world in a_world(tmp_path_factory.mktemp("guardians") / "ipython"):
        world.env |= {"IPP_NONINTERACTIVE": "0", "PYTHONPATH": str(ROOT)}
        kernel = Kernel(world)
        assert "2 ranks" in kernel.run(CONNECT)
        kernel.run("%%px\nimport time")
        yield kernel
        kernel.end()


@pytest.mark.parametrize("fault", some_by_default(IN_KERNEL, 7), ids=str)
def test_a_hang_is_reported_and_the_session_goes_on_while_the_notebook_has_a_fault(
    kernel: Kernel, fault: Fault, tmp_path: Path
) -> None:
    marker = tmp_path / "runs"
    assert not kernel.run(INJECT.format(fault)).strip()
    began = time.monotonic()
    try:
        if fault.step == "snapshot_lines":
            message = kernel.start(f"%%px\nopen('{marker}', 'a').close()\nwhile True:\n    time.sleep(0.01)")
            wait_until(marker.exists, "the cell runs")
            kernel.manager.interrupt_kernel()
            said = kernel.finish(message)
            assert "the cell was stopped" in said, said
        elif fault.step in ("leftovers", "leftover_lines"):
            kernel.run("%%px\nimport numpy\nif rank == 0:\n    comm.Send(numpy.zeros(1), 1)")
            assert "1" in kernel.run("%%px --targets 1\nx = numpy.ones(1)\ncomm.Recv(x)\nprint(1)")
        elif fault.step == "kill":
            said = kernel.run(DEAF)
            assert MISSING in said and "the engines were ended" in said, said
        else:
            said = kernel.run(HANG)
            assert MISSING in said, said
        assert time.monotonic() - began < LIMIT_S
        if fault.step in ("leftovers", "leftover_lines") and fault.kind != "delay":
            pass
        elif fault.step != "kill":
            said = kernel.run("%%px\ncomm.Barrier()\nprint('goes on', rank)")
            assert said.count("] goes on") == 2 or fault.step == "show_output", said
        assert kernel.run("print(len(noted) > 0)") == "True\n", "the step was not called"
    finally:
        kernel.run(f"owner.{fault.step} = plain")
        kernel.run(CONNECT)
    said = kernel.run("%%px\nimport time\ncomm.Barrier()\nprint('goes on', rank)")
    assert said.count("] goes on") == 2, said


def test_a_live_view_that_takes_long_does_not_delay_the_report(kernel: Kernel) -> None:
    """It has a thread of its own: the report comes while the view is at work."""
    kernel.run(
        "import threading\nfrom labkit.cluster.live_view import LiveView\nobserve = LiveView.observe\n"
        "go = threading.Event()\nLiveView.observe = lambda view: go.wait(100)"
    )
    try:
        began = time.monotonic()
        assert MISSING in kernel.run(HANG)
        assert time.monotonic() - began < LIMIT_S
    finally:
        kernel.run("LiveView.observe = observe\ngo.set()")


def test_a_live_view_that_cannot_be_removed_does_not_go_on_in_later_cells(kernel: Kernel) -> None:
    kernel.run(INJECT.format(Fault("kernel", "labkit.cluster.magics", "RankMagics", "remove_view", "error")))
    try:
        assert MISSING in kernel.run(HANG)
        # The view acts twice a second.
        assert kernel.run("import time\ntime.sleep(1.5)\nprint(len(noted) > 0)") == "True\n"
    finally:
        kernel.run("owner.remove_view = plain")


# In the processes of a cluster: a kernel and a cluster for each

PROFILE = """
import os, sys
from labkit import forking
from labkit.cluster.supervisor import ENGINE
from mpiwatch import launch
c = get_config()
faulty = [sys.executable, "-P", {path!r}]
me = str(os.getpid())
c.MPILauncher.mpi_cmd = [*faulty, "supervisor-engines", "engines", me, "", launch.mpiexec()]
if {with_stand_ins}:
    c.EngineLauncher.engine_cmd = [*faulty, "stand-in", *forking.stand_in()[-2:], ENGINE]
c.SupervisedControllerLauncher.controller_cmd = [*faulty, "controller"]
c.SupervisedControllerLauncher.supervisor = [*faulty, "supervisor-controller", "controller", me, ""]
"""
# An error each time in one of these leaves files or processes: nothing else knows of them.
REMOVES = "files_of_place own_log shared_files logs_of_engines remove_old_files sweep remove"
ENDS = "own_descendants kill"
KNOWS = "look"  # which segments of shared memory are the ranks'
OF_FORKED_RANKS = forked_ranks.ForkedRanks.STEPS if is_mpich(launch.mpiexec()) else ()
ESSENTIAL = " ".join(OF_FORKED_RANKS)
IN_CLUSTER = [
    *faults("supervisor-engines", "labkit.cluster.supervisor", "", supervisor.STEPS, REMOVES),
    *faults("supervisor-controller", "labkit.cluster.supervisor", "", supervisor.STEPS, REMOVES),
    *faults("supervisor-engines", "mpiwatch.processes", "", processes.STEPS, f"{REMOVES} {ENDS} {KNOWS}"),
    *faults("supervisor-controller", "mpiwatch.processes", "", processes.STEPS, f"{REMOVES} {ENDS}"),
    *faults("--serve", "labkit.forking", "", forking.STEPS, "_pass_ends_on _pass_signals_on"),
    *faults("stand-in", "labkit.forking", "", ("record_exit",)),
    *faults("--fork", "labkit.forked_ranks", "ForkedRanks", OF_FORKED_RANKS, ESSENTIAL),
    *faults(
        "controller",
        "labkit.cluster.adapter.controller",
        "Hub",
        controller.Hub.STEPS,
        "watch unregister",
    ),
    *faults(
        "controller",
        "labkit.cluster.adapter.controller",
        "HeartMonitor",
        controller.HeartMonitor.STEPS,
        "ping",
    ),
]
# Steps that only some roles have, or that come only to clusters of other kinds.
OF_ENGINES = "name_file_of_exits", "leave_job", "start_listener", "controller_pid"
OF_A_CONTROLLER = ("logs_of_engines", "reap_orphans")
OF_ENGINES_THAT_STAY = ("kill",)  # a controller ends when it is told to
IN_CLUSTER = [
    fault
    for fault in IN_CLUSTER
    if not (fault.where == "supervisor-controller" and fault.step in (*OF_ENGINES, *OF_ENGINES_THAT_STAY))
    and not (fault.where == "supervisor-engines" and fault.step in OF_A_CONTROLLER)
]


@pytest.mark.parametrize("fault", some_by_default(IN_CLUSTER, 27), ids=str)
def test_hangs_are_reported_and_a_killed_kernel_leaves_nothing_while_a_cluster_has_a_fault(
    tmp_path: Path, fault: Fault
) -> None:
    calls = tmp_path / "calls"
    for world in a_world(tmp_path / "ipython"):
        world.env |= {"PYTHONPATH": str(ROOT), FAULT: json.dumps(fault._asdict()), CALLS: str(calls)}
        profile = world.folder / "profile_default"
        profile.mkdir(parents=True)
        (profile / "ipcluster_config.py").write_text(
            PROFILE.format(
                path=str(PROGRAMS / "faulty.py"),
                with_stand_ins=fault.where in ("stand-in", "--serve") or fault.step == "start_listener",
            )
        )
        kernel = Kernel(world)
        try:
            session(world, kernel)
        finally:
            kernel.end()
    assert calls.exists(), "the step was not called"


def session(world: World, kernel: Kernel) -> None:
    """Let a cell hang, a rank die, new engines start, and the kernel be killed."""
    said = kernel.run(CONNECT)
    assert "2 ranks" in said, said
    kernel.run("%%px\nimport time")
    said = kernel.run(HANG)
    assert MISSING in said, said
    said = kernel.run("%%px\ncomm.Barrier()\nprint('goes on', rank)")
    assert said.count("] goes on") == 2, said
    said = kernel.run("%%px\nimport os\nif rank == 1:\n    os.kill(os.getpid(), 9)\ncomm.Barrier()")
    assert "RankDied" in said, said
    said = kernel.run(CONNECT)
    assert "2 ranks" in said, said
    kernel.manager.signal_kernel(9)
    world.wait_until_empty()


# In a check: a program for each

IN_CHECK = [
    *faults("check", "labkit.checks.judging", "", judging.STEPS),
    *faults("judge", "labkit.checks.launching", "Job", launching.Job.STEPS, "has_all"),
    *faults("--serve", "labkit.forking", "", forking.STEPS, "_pass_ends_on _pass_signals_on"),
    *faults("--serve", "mpiwatch.processes", "", processes.STEPS, ENDS),
]


@pytest.mark.parametrize("fault", some_by_default(IN_CHECK, 13), ids=str)
def test_the_verdict_comes_while_a_guardian_of_the_check_has_a_fault(tmp_path: Path, fault: Fault) -> None:
    calls = tmp_path / "calls"
    variables = {"PYTHONPATH": str(ROOT), FAULT: json.dumps(fault._asdict()), CALLS: str(calls)}
    done = subprocess.run(
        [sys.executable, PROGRAMS / "checks_with_a_fault.py", "shift_right"],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [verdict[1:3] for verdict in verdicts] == [[True, False], [False, False]], (
        done.stdout + done.stderr
    )
    assert calls.exists(), "the step was not called"
