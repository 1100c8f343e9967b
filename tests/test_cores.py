"""How long processes have waited for a core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from labkit.cores import WaitForCores
from mpiwatch.processes import LINUX
from tests.cluster_fixtures import wait_until

BUSY = "import os\nos.sched_setaffinity(0, {int(os.environ['CORE'])})\nwhile True: pass"


@pytest.mark.skipif(not LINUX, reason="no other system says it")
def test_of_two_processes_on_one_core_each_waits() -> None:
    environment = {**os.environ, "CORE": str(min(os.sched_getaffinity(0)))}
    busy = [subprocess.Popen([sys.executable, "-c", BUSY], env=environment) for _ in range(2)]
    try:
        waits = WaitForCores(process.pid for process in busy)
        wait_until(lambda: waits.longest_s() > 0.1, "a wait for the core")
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_a_process_that_does_not_exist_waits_for_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert WaitForCores([process.pid]).longest_s() == WaitForCores([]).longest_s() == 0.0
