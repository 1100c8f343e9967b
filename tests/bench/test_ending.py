"""However a benchmark ends, the ranks and other processes that it started end with it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil
import pytest

from tests.cluster_fixtures import DEADLINE_S, World, wait_until
from tests.conftest import thorough


@pytest.mark.parametrize("signum", [signal.SIGINT, thorough(signal.SIGTERM), signal.SIGKILL])
def test_the_ranks_of_bench_collectives_end_with_it(world: World, signum: signal.Signals) -> None:
    words = ("--ranks", "3", "--sizes", "4MiB", "--seconds", "300")
    bench = world.start("labkit", "bench", "collectives", *words)
    assert bench.stdout
    pipe = bench.stdout.fileno()
    os.set_blocking(pipe, False)
    output: list[bytes] = []

    def measuring() -> bool:
        with suppress(BlockingIOError):
            output.append(os.read(pipe, 4096))
        return b"round" in b"".join(output)

    wait_until(measuring, "a line about the progress")
    bench.send_signal(signum)
    bench.wait(DEADLINE_S)
    world.wait_until_empty()
    bench.stdout.close()


def test_the_children_of_bench_step_end_with_it(world: World) -> None:
    # Batches that take minutes, so that no child can end by itself before the test gives up.
    words = ("--model", "vgg11", "--batch", "64", "--batch", "63", "--threads", "1", "--threads", "2")
    bench = world.start("labkit", "bench", "step", *words)

    def measuring() -> bool:
        with suppress(psutil.Error):
            children = psutil.Process(bench.pid).children(recursive=True)
            return any("--json" in child.cmdline() and child.cpu_times().user > 3 for child in children)
        return False

    wait_until(measuring, "a child that measures")
    bench.kill()
    bench.wait(DEADLINE_S)
    wait_until(lambda: not world.processes(), "the end of the children")
    assert bench.stdout
    bench.stdout.close()
