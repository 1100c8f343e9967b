"""Which notebook uses a cluster's engines. One at a time: the collectives of two would mix.

One file of the cluster names its owner: the kernel that uses the engines, and whether a cell of its notebook
is using them. Another notebook may take them unless it is. A kernel reads and writes the file under a lock,
so that no two act on the same state. It marks its cell when the cell first uses the engines, before it sends
them anything, and takes the mark back when the cell ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from IPython import get_ipython

from labkit.cluster.errors import ClusterError
from labkit.cluster.supervisor import cluster_files
from mpiwatch.processes import start_time
from mpiwatch.recorder import CellState, FlightRecorder

started = cache(start_time)  # of this process


@dataclass(frozen=True)
class Owner:
    """The notebook kernel that uses the engines, and the path of their flight recorder.

    `started` is from mpiwatch.processes.start_time: another process may have the pid later. `notebook` is the
    notebook's path, if the kernel knows it. `in_cell`: a cell of the notebook is using the engines.
    """

    pid: int
    started: str
    notebook: str
    recorder: str = ""
    in_cell: bool = False

    def __str__(self) -> str:
        name = os.path.basename(self.notebook) or "another notebook"
        twice = "another kernel of " * bool(self.notebook and self.notebook == this_notebook())
        return f"{twice}{name} (kernel process {self.pid})"

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started != ""

    @property
    def is_me(self) -> bool:
        return self.pid == os.getpid() and self.started == started(self.pid)

    @property
    def is_other(self) -> bool:
        """Return whether another process is the owner and runs."""
        return self.pid != os.getpid() and self.alive

    @property
    def is_busy(self) -> bool:
        """Return whether a cell uses the engines; its kernel need not wait for it (`%%px --noblock`)."""
        if self.in_cell:
            return True
        with suppress(OSError):  # the recorder may be gone
            recorder = FlightRecorder(self.recorder) if self.recorder else None
            return recorder is not None and any(
                slot.cell_state == CellState.RUNNING and slot.pid and recorder.is_alive(rank)
                for rank, slot in enumerate(recorder.slots)
            )
        return False


def this_notebook() -> str:
    """Return the path of this kernel's notebook; empty if unknown."""
    # JupyterLab sets the environment variable, VS Code the variable of the notebook.
    shell = get_ipython()
    other = shell.user_ns.get("__vsc_ipynb_file__", "") if shell is not None else ""
    return os.environ.get("JPY_SESSION_NAME", "") or str(other)


class Claim:
    """The right of this notebook to use a cluster's engines."""

    def __init__(self, profile_dir: str, cluster_id: str) -> None:
        self.file = Path(cluster_files(profile_dir, cluster_id)["owner"])
        self.before: Owner | None = None  # the owner before `take`

    def owner(self) -> Owner | None:
        """Return the last owner, alive or not; None if there never was one, or if it gave the engines up."""
        return self._change(lambda owner: owner)

    def other(self) -> Owner | None:
        """Return the owner if it is alive and is not this process."""
        found = self.owner()
        return found if found is not None and found.is_other else None

    def preference(self) -> int:
        """Return 0 if this notebook has the engines, 1 if none has, 2 if an idle one has, 3 if a busy one."""
        found = self.owner()
        if found is None or not found.alive:
            return 1
        return 0 if found.is_me else 2 + found.is_busy

    def take(self, *, by_force: bool) -> bool:
        """Make this notebook the owner, until the end of its cell at least; return whether it is.

        It is not if a cell of another notebook uses the engines, unless it takes them by force.
        """
        if get_ipython() is None:  # a program that is no notebook takes nothing: it has no cells to keep out
            self.before = self.owner()
            return by_force or self.other() is None
        me = Owner(os.getpid(), started(os.getpid()), this_notebook(), in_cell=cell.is_running(self))

        def taken(owner: Owner | None) -> Owner:
            if owner is not None and owner.is_other and owner.is_busy and not by_force:
                return owner
            return replace(me, recorder=owner.recorder if owner is not None else "")

        self.before = self._change(taken, create=True)
        return self.other() is None

    @property
    def displaced(self) -> Owner | None:
        """Return the owner that `take` has taken the engines from, if it is alive and is not this process."""
        return self.before if self.before is not None and self.before.is_other else None

    @property
    def is_first_use(self) -> bool:
        """Return whether another notebook, whose names they may have, was the last to use the engines."""
        return get_ipython() is not None and not (self.before is not None and self.before.is_me)

    def release(self, successor: Owner | None = None) -> None:
        """Give the engines up if this process is their owner."""
        self._change(lambda owner: successor if owner is not None and owner.is_me else owner)

    def change(self, **fields: Any) -> Owner | None:
        """Change what the file says if this process is the owner; return the owner before."""
        return self._change(
            lambda owner: replace(owner, **fields) if owner is not None and owner.is_me else owner
        )

    def hold(self) -> None:
        """Keep the engines until this notebook's cell ends; raise ClusterError if it no longer owns them."""
        found = self.change(in_cell=cell.is_running(self))
        if found is not None and found.is_me:
            return
        if found is not None and found.alive:
            raise ClusterError(
                f"{found} has the engines now: run the cell with `connect()` again to take them back."
            )
        raise ClusterError(
            "another notebook has used the engines since, and has ended: run the cell with `connect()` again."
        )

    def _change(self, change: Callable[[Owner | None], Owner | None], create: bool = False) -> Owner | None:
        """Put what `change` returns for the present owner in its place; return the owner before."""
        try:
            number = os.open(self.file, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:  # nobody has used the engines, or the cluster has ended
            return None
        with open(number, "r+") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(number, fcntl.LOCK_EX)  # until it is closed; others hold it for microseconds
            text = file.read()
            try:
                before = Owner(**json.loads(text))
            except (ValueError, TypeError):
                before = None
            after = change(before)
            if after != before:
                new = json.dumps(asdict(after)) if after is not None else ""
                file.seek(0)
                file.write(new.ljust(len(text)))  # to cut the file would take ten times as long
        return before


class Cell:
    """The cell that this kernel runs, and the claims that it has marked as in use."""

    def __init__(self) -> None:
        self.runs = False
        self.claims: set[Claim] = set()
        self.shell: Any = None

    def is_running(self, claim: Claim) -> bool:
        """Return whether a cell runs, which then uses the engines: not in a callback of a widget."""
        shell = get_ipython()
        if shell is not None and shell is not self.shell:
            self.shell = shell
            self.runs = True  # this is the cell with `connect()`
            shell.events.register("pre_execute", self._begin)
            shell.events.register("post_execute", self._end)
        if self.runs:
            self.claims.add(claim)
        return self.runs

    def _begin(self) -> None:
        self.runs = True

    def _end(self) -> None:
        self.runs = False
        while self.claims:
            self.claims.pop().change(in_cell=False)


cell = Cell()
