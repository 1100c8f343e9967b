"""Training gives way to what a student waits for: the thread of cells has a lower priority than a check."""

from __future__ import annotations

import pytest

from labkit.priority import TRAINING
from mpiwatch.processes import LINUX
from tests.conftest import run_python

pytestmark = pytest.mark.skipif(not LINUX, reason="elsewhere, a thread has no priority of its own")

PROGRAM = """
import os, subprocess, threading
from labkit import priority

def nice_of(tid):
    return os.getpriority(os.PRIO_PROCESS, tid)

def started():
    return int(subprocess.run(["nice"], capture_output=True, text=True, check=True).stdout)

begin = threading.Event()
watchdog = threading.Thread(target=begin.wait)
watchdog.start()
before = os.nice(0)
priority.lower(starts_checks={starts_checks})
later = threading.Thread(target=lambda: print(nice_of(0) - before))
later.start()
later.join()
print(nice_of(0) - before, nice_of(watchdog.native_id) - before, started() - before)
print(priority.with_normal_priority(started) - before, flush=True)
child = os.fork()
if child == 0:  # which has no other thread
    print(priority.with_normal_priority(started) - before, flush=True)
    os._exit(0)
os.waitpid(child, 0)
begin.set()
"""


@pytest.mark.parametrize(("starts_checks", "of_checks"), [(True, 0), (False, TRAINING)])
def test_the_thread_of_cells_has_a_lower_priority(starts_checks: bool, of_checks: int) -> None:
    """So have its threads and its processes; threads from before have not, nor what a check starts."""
    program = PROGRAM.replace("{starts_checks}", str(starts_checks))
    done = run_python("-c", program, start_new_session=True)  # whose priority is lowered, too
    assert [int(word) for word in done.stdout.split()] == [
        TRAINING,
        TRAINING,
        0,
        TRAINING,
        of_checks,
        TRAINING,
    ]
