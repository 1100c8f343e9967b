"""However `labkit bench collectives` ends, the ranks that it started end with it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from tests.cluster_fixtures import World, wait_until


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_bench_that_is_ended_leaves_nothing(world: World, signum: signal.Signals) -> None:
    bench = world.start(
        "labkit", "bench", "collectives", "--ranks", "3", "--sizes", "4MiB", "--seconds", "300"
    )
    assert bench.stdout
    pipe = bench.stdout.fileno()
    os.set_blocking(pipe, False)
    said: list[bytes] = []

    def measuring() -> bool:
        with suppress(BlockingIOError):
            said.append(os.read(pipe, 4096))
        return b"round" in b"".join(said)

    wait_until(measuring, "a sign of progress")
    bench.send_signal(signum)
    bench.wait(15)
    world.wait_until_empty()
    bench.stdout.close()
