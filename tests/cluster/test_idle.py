"""An idle notebook costs next to nothing: thirty of them share a small server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from tornado.ioloop import PeriodicCallback

from labkit.cluster.adapter.controller import CHANGING_S, QUIET_MS, HeartMonitor
from mpiwatch.processes import LINUX, SHM, supervised
from tests.cluster_fixtures import Kernel, wait_until

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(not LINUX, reason="elsewhere, no file tells of sleeps and wakes"),
]

CONNECT = "from labkit.cluster import connect\nrc = connect({})"


def wakes(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep so far."""
    lines = [
        line
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
    ]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def engines(kernel: Kernel) -> list[int]:
    """Return the pids of the engines."""
    said = kernel.run("print(*rc[:].apply_sync(__import__('os').getpid))")
    return [int(word) for word in said.split()]


def test_an_idle_engine_sleeps(kernel: Kernel) -> None:
    """It woke eleven times a second, for its watchdog, for pings and to look whether pings come."""
    assert "2 ranks" in kernel.run(CONNECT.format(2))
    kernel.run("%px pass")
    pids = engines(kernel)

    def per_second() -> float:
        before, began = sum(map(wakes, pids)), time.monotonic()
        time.sleep(2 * QUIET_MS / 1000)
        return (sum(map(wakes, pids)) - before) / (time.monotonic() - began) / len(pids)

    wait_until(lambda: per_second() < 5, "idle engines sleep", 60)


PERIODS = """%%px
from ipyparallel.engine.app import IPEngine
app = IPEngine.instance()
print(app.hb_check_period, app.max_heartbeat_misses)
"""


def test_an_idle_engine_looks_for_pings_less_often_than_they_come(kernel: Kernel) -> None:
    """It looked more often, and wrote a warning into its log each second."""
    assert "2 ranks" in kernel.run(CONNECT.format(2))
    said = kernel.run(PERIODS)
    looks_ms, misses = map(int, said.split()[-2:])
    assert looks_ms > QUIET_MS and 25_000 < looks_ms * misses < 40_000, said


def test_the_heart_monitor_pings_soon_if_an_engine_comes_in_a_quiet_time() -> None:
    """An engine is registered at the ping after it has come."""

    async def come() -> float:
        monitor = HeartMonitor(period=20)
        monitor.caller = PeriodicCallback(pinged.set, 1000 * 3600)  # between pings in a quiet time
        monitor.caller.start()
        monitor.tic = began = time.monotonic()
        monitor.end_quiet()
        await asyncio.wait_for(pinged.wait(), 60)
        monitor.caller.stop()
        assert monitor.lifetime - monitor.changed < 1
        return time.monotonic() - began

    pinged = asyncio.Event()
    asyncio.run(come())


def test_the_heart_monitor_is_quiet_unless_an_engine_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pings a second for ten seconds after a start slowed a class that starts together."""
    monitor = HeartMonitor(period=100)
    monitor.caller = PeriodicCallback(monitor.beat, 100)
    monitor.hearts = {b"engine"}
    monitor.lifetime = 2 * CHANGING_S
    monitor.adapt_period({b"engine"})
    assert monitor.caller.callback_time == QUIET_MS
    monkeypatch.setattr(HeartMonitor, "waiting", {b"another": "as the hub notes it"})
    monitor.adapt_period({b"engine"})
    assert monitor.caller.callback_time == 100


def test_the_hub_learns_of_an_engine_by_its_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It learned of it at the next ping, so each start took a tenth of a second longer."""
    told: list[bytes] = []
    monkeypatch.setattr(HeartMonitor, "handle_new_hearts", lambda monitor, hearts: told.extend(hearts))
    monitor = HeartMonitor(period=100)
    monitor.hearts = {b"engine"}
    answer = str(monitor.lifetime).encode()
    monitor.handle_pong([b"engine", answer])
    monitor.handle_pong([b"new", b"of an earlier ping"])  # too late to count
    assert not told
    monitor.handle_pong([b"new", answer])
    assert told == [b"new"]


WATCHED = """%%px
import time
from mpiwatch import waiting
slot = waiting.watched.slot
until_s = time.monotonic() + 1.0
while slot.sampled_s < slot.cell_state_since_s and time.monotonic() < until_s:
    time.sleep(0.001)
print("sampled" if slot.sampled_s >= slot.cell_state_since_s else "not sampled")
"""


def test_a_cell_that_begins_wakes_the_watchdog(kernel: Kernel) -> None:
    assert "2 ranks" in kernel.run(CONNECT.format(2))
    kernel.run("%px pass")
    time.sleep(1)  # now the watchdogs sleep for two seconds
    assert "not sampled" not in kernel.run(WATCHED)


def test_files_of_other_programs_cost_a_supervisor_nothing(tmp_path: Path) -> None:
    """For each, it read what all processes of the machine have open: others' classes make thousands."""
    line = ["sh", "-c", "echo; read line"]
    paths = [Path(SHM, f"another-{os.getpid()}-{number}") for number in range(200)]
    with subprocess.Popen([*supervised(), *line], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdin and job.stdout and job.stdout.readline() == b"\n"
        supervisor = psutil.Process(job.pid)
        before, wakes_before = sum(supervisor.cpu_times()[:2]), wakes(job.pid)
        try:
            for number, path in enumerate(paths):
                path.touch()
                wait_until(lambda: wakes(job.pid) > wakes_before + number, "it has seen the file")  # noqa: B023
        finally:
            for path in paths:
                path.unlink(missing_ok=True)
        used_s = sum(supervisor.cpu_times()[:2]) - before
        job.communicate(b"\n")
    assert used_s < 0.06, f"{used_s:.2f} s for {len(paths)} files"
