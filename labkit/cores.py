"""How long processes have waited for a core: on a busy machine, a deadline need not count that time."""

from __future__ import annotations

from collections.abc import Iterable


def waited_for_core_s(pid: int) -> float:
    """Return how many seconds a process's main thread has waited for a core; 0 where no system says it.

    Source: the second number of /proc/PID/task/PID/schedstat, in nanoseconds (Linux, sched-stats.rst).
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class WaitForCores:
    """How long processes have waited for a core since this object was made."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.before = {pid: waited_for_core_s(pid) for pid in pids}

    def longest_s(self) -> float:
        """Return the time of the process that has waited longest; 0 without processes."""
        waits = [waited_for_core_s(pid) - before for pid, before in self.before.items()]
        return max([0.0, *waits])  # a process that has ended says nothing any more
