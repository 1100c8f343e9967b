"""Several processes fetch the same data set, or one is killed while it does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from labkit import data
from tests.data.conftest import FILES, IMAGES, Server, assert_fetched, requested_ranges

FETCH = """
import sys
from labkit import data
from tests.made_sets import archive_files, random_samples, source_for

samples = random_samples("mnist", 300, 20)
data.SOURCES["mnist"] = source_for("mnist", samples, archive_files("mnist", samples), sys.argv[1])
print("ready", flush=True)
data.fetch("mnist")
assert data.load("mnist").y_train.tolist() == samples["train"][1].tolist()
print("done", flush=True)
"""


def start_fetching(server: Server) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, server.address],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_concurrent_processes_download_once(cache: Path, server: Server) -> None:
    server.gate = threading.Event()  # holds the first download until the other processes wait
    jobs = [start_fetching(server) for _ in range(3)]
    lines = [job.stdout.readline() for job in jobs if job.stdout]
    assert lines == ["ready\n"] * 3
    waiting = 0
    # The server completes the download when two of the three processes have reported that they wait.
    threads = []
    reported = threading.Semaphore(0)
    outputs: list[list[str]] = [[], [], []]

    def read_output(k: int) -> None:
        for line in jobs[k].stdout or ():
            outputs[k].append(line)
            if "is fetching mnist; waiting for it" in line:
                reported.release()

    for k in range(3):
        threads.append(threading.Thread(target=read_output, args=(k,)))
        threads[-1].start()
    try:
        while waiting < 2 and reported.acquire(timeout=60):
            waiting += 1
        assert waiting == 2, outputs
    finally:
        server.gate.set()
        for job in jobs:
            job.wait(timeout=60)
        for thread in threads:
            thread.join()
    assert [job.returncode for job in jobs] == [0, 0, 0], outputs
    assert sorted(server.requests) == sorted((name, None) for name in FILES)
    assert_fetched(cache)


def test_after_a_killed_process_the_download_is_resumed(cache: Path, server: Server) -> None:
    server.gate = threading.Event()
    size = len(FILES[IMAGES])
    server.breaks = [size // 2]
    job = start_fetching(server)
    part = cache / f"{IMAGES}.part"
    while job.poll() is None and not (part.exists() and part.stat().st_size):
        pass
    job.kill()
    job.wait()
    if job.stdout:
        job.stdout.close()
    server.gate.set()
    received = part.stat().st_size
    assert 0 < received <= size // 2
    assert not data.is_cached("mnist") and not (cache / IMAGES).exists()
    server.breaks = []
    data.fetch("mnist")
    assert requested_ranges(server)[-1] == f"bytes={received}-"
    assert_fetched(cache)
