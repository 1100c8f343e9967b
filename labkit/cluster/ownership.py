"""Which notebook uses a cluster's engines. One at a time: the collectives of two would mix.

The owner file of a cluster names the kernel that uses its engines. Another notebook may take them from an
owner that runs no cell on them. A lock says that it does: a kernel takes the lock when a cell of its notebook
first uses the engines, and gives it up when that cell ends. A kernel that takes the engines over does so in
the cell with `connect()`, too, so that no cell of the former owner can start meanwhile. The operating system
gives up the lock of a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from IPython import get_ipython

from labkit.cluster.errors import ClusterError
from labkit.leftovers import cluster_files
from mpiwatch.flight_recorder.layout import CellState, FlightRecorder
from mpiwatch.processes import start_time

# A kernel that tests the lock holds it for a moment. A kernel that lost its engines by force holds it until
# its cell ends.
LOCK_S = 1.0
POLL_S = 0.01


@dataclass(frozen=True)
class Owner:
    """The notebook kernel that uses the engines, and the path of their flight recorder.

    `started` is from mpiwatch.processes.start_time: another process may have the pid later. `notebook` is the
    notebook's path, if the kernel knows it.
    """

    pid: int
    started: str
    host: str
    notebook: str
    recorder: str = ""

    def __str__(self) -> str:
        name = os.path.basename(self.notebook) or "another notebook"
        twice = "another kernel of " * bool(self.notebook and self.notebook == this_notebook())
        return f"{twice}{name} (kernel process {self.pid})"

    @property
    def is_me(self) -> bool:
        """Return whether this process is the owner."""
        return self.pid == os.getpid() and self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Return whether the kernel runs; a kernel on another machine counts as running."""
        if self.host != socket.gethostname():
            return True
        return start_time(self.pid) == self.started != ""

    @property
    def runs_a_cell(self) -> bool:
        """Return whether a rank runs a cell; the kernel need not wait for it (`%%px --noblock`)."""
        try:
            recorder = FlightRecorder(self.recorder) if self.recorder else None
        except OSError:
            return False
        return recorder is not None and any(
            slot.cell_state == CellState.RUNNING and slot.pid and recorder.is_alive(rank)
            for rank, slot in enumerate(recorder.slots)
        )


class State(IntEnum):
    """What the engines of a cluster are to this notebook, the best first."""

    MINE, FREE, IDLE, BUSY = range(4)


def this_notebook() -> str:
    """Return the path of this kernel's notebook; empty if unknown."""
    # JupyterLab sets the environment variable, VS Code the variable of the notebook.
    shell = get_ipython()
    other = shell.user_ns.get("__vsc_ipynb_file__", "") if shell is not None else ""
    return os.environ.get("JPY_SESSION_NAME", "") or str(other)


class Claim:
    """The right of this notebook to use a cluster's engines."""

    def __init__(self, profile_dir: str, cluster_id: str) -> None:
        files = cluster_files(profile_dir, cluster_id)
        self.file = Path(files["owner"])
        self.before: Owner | None = None  # the owner before `take`
        # The controller writes this file once. It stays as long as the cluster, and no other is left behind.
        self.lock_file = files["client"]

    def owner(self) -> Owner | None:
        """Return the last owner, alive or not; None if there never was one, or if it gave the engines up."""
        try:
            return Owner(**json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def other(self) -> Owner | None:
        """Return the owner if it is alive and is not this process."""
        found = self.owner()
        return found if found is not None and not found.is_me and found.alive else None

    def state(self) -> State:
        """Return whether this notebook could use the engines now."""
        found = self.owner()
        if found is None or not (found.is_me or found.alive):
            return State.FREE
        if found.is_me:
            return State.MINE
        return State.BUSY if found.runs_a_cell or locks.is_taken(self.lock_file) else State.IDLE

    def take(self, *, by_force: bool) -> bool:
        """Make this notebook the owner, until the end of its cell at least; return whether it is.

        It is not if the engines run a cell of another notebook, unless it takes them by force.
        """
        self.before = self.owner()
        other = self.other()
        if get_ipython() is None:  # a program that is no notebook takes nothing: it has no cells to keep out
            return other is None or by_force
        deadline = time.monotonic() + LOCK_S
        while not (is_locked := locks.take(self.lock_file)) and other is None and time.monotonic() < deadline:
            time.sleep(POLL_S)  # another notebook may be about to take these free engines
            other = self.other()
        if other is not None and not by_force and (not is_locked or other.runs_a_cell):
            return False
        self.before = self.owner()
        self.write(self.before.recorder if self.before is not None else "")
        return True

    @property
    def loser(self) -> Owner | None:
        """Return the owner that `take` has taken the engines from, if it is alive and is not this process."""
        before = self.before
        return before if before is not None and before.alive and not before.is_me else None

    @property
    def is_first_use(self) -> bool:
        """Return whether another notebook, whose names they may have, was the last to use the engines."""
        return get_ipython() is not None and not (self.before is not None and self.before.is_me)

    def write(self, recorder: str) -> None:
        """Name this notebook as the owner of the engines, whose flight recorder is at the path `recorder`."""
        if get_ipython() is None:
            return
        me = Owner(os.getpid(), start_time(os.getpid()), socket.gethostname(), this_notebook(), recorder)
        self._replace(me)

    def give_back(self) -> None:
        """Undo `take`: name the owner from before again."""
        if (found := self.owner()) is not None and found.is_me:
            if self.before is None:
                self.file.unlink(missing_ok=True)
            else:
                self._replace(self.before)

    def release(self) -> None:
        """Give the engines up if this process is their owner."""
        if (found := self.owner()) is not None and found.is_me:
            self.file.unlink(missing_ok=True)

    def hold(self) -> None:
        """Keep the engines until this notebook's cell ends; raise ClusterError if it no longer owns them."""
        self.check()
        deadline = time.monotonic() + LOCK_S
        while not locks.take(self.lock_file) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        try:
            self.check()  # another notebook may have had the lock since
        finally:
            locks.give_up_between_cells()

    def check(self) -> None:
        """Raise ClusterError if another notebook has taken the engines over, even if it has ended since."""
        found = self.owner()
        if found is not None and found.is_me:
            return
        if found is not None and found.alive:
            raise ClusterError(
                f"{found} has the engines now: run the cell with `connect()` again to take them back."
            )
        raise ClusterError(
            "another notebook has used the engines since, and has ended: run the cell with `connect()` again."
        )

    def _replace(self, owner: Owner) -> None:
        written = self.file.with_name(f"{self.file.name}-{os.getpid()}")
        written.write_text(json.dumps(asdict(owner)))
        written.replace(self.file)


class Locks:
    """The locks that this process holds until its notebook's cell ends."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}  # open files, by their path
        self.in_cell = False
        self.shell: Any = None

    def take(self, path: str) -> bool:
        """Lock a file; return False if another process has. A file that cannot be locked counts as locked."""
        self._follow_cells()
        if path in self.held:
            return True
        try:
            self.held[path] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(self.held[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.held.pop(path))
            return False
        except OSError:  # the cluster has just ended, or its folder is on a file system without locks
            return True
        return True

    def is_taken(self, path: str) -> bool:
        """Return whether another process has locked a file."""
        if path in self.held:
            return False
        is_free = self.take(path)
        self.give_up(path)
        return not is_free

    def give_up(self, path: str) -> None:
        """Unlock a file if this process has locked it."""
        if (file := self.held.pop(path, None)) is not None:
            # Not by closing alone: a process that the cell has forked may have the file open, too.
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def give_up_between_cells(self) -> None:
        """Unlock all files if no cell runs, as in a callback of a widget: nothing else would."""
        for path in () if self.in_cell else tuple(self.held):
            self.give_up(path)

    def _follow_cells(self) -> None:
        shell = get_ipython()
        if shell is not None and shell is not self.shell:
            self.shell = shell
            self.in_cell = True  # this is the cell with `connect()`
            shell.events.register("pre_execute", self._begin_cell)
            shell.events.register("post_execute", self._end_cell)

    def _begin_cell(self) -> None:
        self.in_cell = True

    def _end_cell(self) -> None:
        self.in_cell = False
        self.give_up_between_cells()


locks = Locks()
