"""A place for tests: ranks of this machine that start once a file says that the queue is open.

    python queue.py -n RANKS PROGRAM …

replaces `mpiexec`. The folder in QUEUE holds the files: `open` lets a job start, `closed` refuses it, and
`drained` says why ranks have ended.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from labkit.cluster.places.errors import ClusterError
from labkit.cluster.places.place import Engines, EnginesState, Place
from mpiwatch import launch

FOLDER = "QUEUE"
POLL_S = 0.05
LIMIT_S = 600.0  # for a test that has forgotten the queue


def is_there(name: str) -> bool:
    """Return whether the queue's folder has a file of this name."""
    return Path(os.environ[FOLDER], name).exists()


class QueuedEngines(Engines):
    """Engines that have been put into the queue."""

    name = "the queued job"

    def state(self) -> EnginesState:
        is_pending = not is_there("open")
        return EnginesState(f"the queued job {'is pending' if is_pending else 'runs'}", is_pending)

    def why_not_wait(self, waited_s: float) -> str:
        return "The queue is closed" if is_there("closed") else ""

    def cause_of_end(self, hosts: Mapping[int, str]) -> str:
        return f"the queue of {len(hosts)} ranks was drained" if is_there("drained") else ""


class Queue(Place):
    """A queue with room for three ranks."""

    engines = QueuedEngines

    def check(self, n: int) -> None:
        if n > 3:
            raise ClusterError(f"the queue has room for 3 ranks, not for {n}")

    def before_start(self, n: int, hosts: str | None) -> dict[str, str]:
        return {"RANKS_IN_QUEUE": str(n)}


PLACE = Queue()

if __name__ == "__main__":
    deadline = time.monotonic() + LIMIT_S
    while not is_there("open") and time.monotonic() < deadline:
        time.sleep(POLL_S)
    os.execv(launch.mpiexec(), [launch.mpiexec(), *sys.argv[1:]])
