"""Priorities on a machine that several students share: what a student waits for goes before training.

The thread of a rank that runs cells lowers its priority. The rank's other threads, which report hangs, send
output and answer completions, keep theirs, and so do the processes of a check. On Linux each thread has a
priority of its own, and an ordinary user's cannot be raised again. So a rank keeps a thread that starts what
must not be slowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from mpiwatch.processes import LINUX

# Added to the nice level: a core that both want goes to a check for five sixths of the time. With twenty
# notebooks on two cores, nineteen of which train, a check takes 8.4 s at level 5, 5.0 at 7, 4.4 at 8 and 3.6
# at 10 (alone 0.9). Beside four programs that a student has started in a terminal, a cell of 0.35 s takes 8,
# 11, 14 and 23 s.
TRAINING = 7
AUTOGROUP = "/proc/self/autogroup"  # Linux may also share cores among sessions; each rank leads one

Result = TypeVar("Result")
_starting: dict[int, ThreadPoolExecutor] = {}  # by the pid of this process: a forked child has no such thread


def lower(*, starts_checks: bool) -> None:
    """Lower the priority of this thread and of those that it starts, once. Does nothing but on Linux.

    `starts_checks`: keep a thread that starts processes with normal priority.
    """
    if not LINUX:
        return
    if starts_checks and os.getpid() not in _starting:
        _starting[os.getpid()] = ThreadPoolExecutor(1, "normal-priority")
        with_normal_priority(os.getpid)  # now, so that the thread does not get the low priority
    os.nice(TRAINING)  # of this thread alone
    if os.getsid(0) == os.getpid():  # else others, such as a terminal, are in the session
        with suppress(OSError), open(AUTOGROUP, "w") as file:  # some kernels have no such groups
            file.write(str(TRAINING))


def with_normal_priority(function: Callable[[], Result]) -> Result:
    """Call a function that starts a process, which then has the priority that this one had at first."""
    starting = _starting.get(os.getpid())
    return function() if starting is None else starting.submit(function).result()
