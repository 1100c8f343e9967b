"""Ranks that train give way to checks, and to what reports hangs."""

from __future__ import annotations

import pytest

from labkit.priority import TRAINING
from mpiwatch.processes import LINUX
from tests.cluster.shared import kernel, world  # noqa: F401
from tests.cluster_fixtures import Kernel

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(not LINUX, reason="elsewhere, a thread has no priority of its own"),
]

NICE = """%%px
import os
levels = [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]
normal, of_cells = min(levels), os.nice(0)
print(of_cells - normal, of_cells == max(levels))
"""
# The processes below rank 0 that the check has started: the supervisor, and what forks judges.
CHECK = """%%px
import psutil
from labkit.exercises import check

def average_gradients(comm, grads, samples):
    grads *= 2

average_gradients = check(average_gradients)
started = psutil.Process().children(recursive=True)
if rank == 0:
    print(len(started) > 0, {process.nice() - normal for process in started})
"""


def test_cells_have_a_lower_priority_than_other_threads_and_checks(kernel: Kernel) -> None:  # noqa: F811
    assert "2 ranks" in kernel.run("from labkit.cluster import connect\nrc = connect(2)")
    printed = kernel.run(NICE)
    assert f"[ranks 0, 1] {TRAINING} True" in printed
    printed = kernel.run(CHECK)
    assert "not correct yet" in printed
    assert "True {0}" in printed, printed
