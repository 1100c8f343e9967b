"""Whoever started engines and however they end: no process, no file, no segment is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from tests.cluster_fixtures import Kernel, Start, World, wait_until

DEADLOCK = "%%px --noblock\nfrom mpi4py import MPI\nif rank == 0:\n    MPI.COMM_WORLD.Barrier()"
SPIN = "%%px --noblock\nwhile rank == 0: pass"


@pytest.mark.parametrize("cell", ["%px rank", DEADLOCK, SPIN], ids=["idle", "deadlock", "spin"])
def test_a_killed_kernel_takes_its_engines_along(
    world: World, new_kernel: Callable[[], Kernel], cell: str
) -> None:
    kernel = new_kernel()
    kernel.run("from labkit.cluster import connect\nrc = connect(4)")
    kernel.run(cell)
    kernel.manager.signal_kernel(signal.SIGKILL)
    world.wait_until_empty()


def test_a_kernel_killed_while_its_engines_come_up(world: World, new_kernel: Callable[[], Kernel]) -> None:
    kernel = new_kernel()
    kernel.start("from labkit.cluster import connect\nrc = connect(4)")
    wait_until(
        lambda: any("labkit.cluster.engine.exit_recorder" in command for command in world.commands()),
        "engines",
    )
    kernel.manager.signal_kernel(signal.SIGKILL)
    world.wait_until_empty()


def test_a_kernel_that_ends_in_order(world: World, new_kernel: Callable[[], Kernel]) -> None:
    kernel = new_kernel()
    kernel.run("from labkit.cluster import connect\nrc = connect(3)")
    kernel.manager.shutdown_kernel()
    world.wait_until_empty()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ipcluster(
    world: World,
    ipcluster: Start,
    new_kernel: Callable[[], Kernel],
    signum: signal.Signals,
) -> None:
    process = ipcluster("--engines=MPI", "-n", "4")
    kernel = new_kernel()
    kernel.run("from labkit.cluster import connect\nrc = connect(4)")
    kernel.run(DEADLOCK)
    kernel.end()
    process.send_signal(signum)
    process.wait()
    world.wait_until_empty()


@pytest.mark.parametrize("victim", ["controller", "engines"])
def test_a_killed_watcher(world: World, new_kernel: Callable[[], Kernel], victim: str) -> None:
    """The watchers themselves can be killed: what they watch ends all the same."""
    kernel = new_kernel()
    kernel.run("from labkit.cluster import connect\nrc = connect(4)")
    kernel.run(DEADLOCK)
    for process in world.processes():
        with suppress(psutil.Error):
            if (
                any(word.endswith("supervisor.py") for word in process.cmdline())
                and victim in process.cmdline()
            ):
                process.kill()
    kernel.manager.signal_kernel(signal.SIGKILL)
    wait_until(lambda: not world.processes(), "all processes gone", 15)
