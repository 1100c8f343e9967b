"""A run that ends early leaves nothing in shared memory, although its ranks have no supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mpiwatch import launch, processes
from mpiwatch.processes import LINUX

DEADLINE_S = 60


@pytest.mark.skipif(not LINUX, reason="elsewhere, no directory lists the segments")
@pytest.mark.parametrize("end", ["SIGKILL of a rank", "SIGTERM", "SIGKILL of MPICH's proxy"])
def test_a_run_that_is_ended_leaves_no_segment_and_no_process(end: str, tmp_path: Path) -> None:
    """MPICH starts the ranks by a process that it calls proxy, and does not notice that one's end."""
    if "proxy" in end and not processes.is_mpich(launch.mpiexec()):
        pytest.skip("Open MPI has no such process on its own machine")
    command = [launch.mpiexec(), "-n", "3", sys.executable, "-m", "labkit", "train", "--epochs", "1000000"]
    with subprocess.Popen(
        [*command, "--out", tmp_path],
        env={**os.environ, **launch.settings()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout and any("epoch 3:" in line for line in job.stdout)
        family = psutil.Process(job.pid).children(recursive=True)
        ranks = [each for each in family if "train" in each.cmdline()]
        segments = segments_of(ranks)
        assert segments
        if end == "SIGKILL of a rank":
            ranks[-1].kill()
        elif "proxy" in end:
            next(each for each in family if each.name() == "hydra_pmi_proxy").kill()
        else:
            job.terminate()
        try:
            job.communicate(timeout=DEADLINE_S)
        finally:
            for rank in ranks:  # they have ended, unless the test fails
                with suppress(psutil.NoSuchProcess):
                    rank.kill()
    deadline = time.monotonic() + DEADLINE_S
    while left := [path for path in segments if os.path.exists(path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    _, alive = psutil.wait_procs(family, timeout=DEADLINE_S)
    assert not alive


def segments_of(ranks: list[psutil.Process]) -> set[str]:
    """Return the files in shared memory that these processes have mapped."""
    found = set()
    for rank in ranks:
        with suppress(OSError):
            for line in Path(f"/proc/{rank.pid}/maps").read_text().splitlines():
                if f" {processes.SHM}/" in line:
                    found.add(line.split(maxsplit=5)[5].strip())
    return {path for path in found if os.path.exists(path)}
