"""However a benchmark ends, the ranks and other processes that it started end with it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

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
