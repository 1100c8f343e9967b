"""Who holds a cluster's engines: one notebook, for the collectives of two would mix."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

import ipyparallel as ipp
import psutil

from labkit.leftovers import cluster_files


@dataclass(frozen=True)
class Holder:
    """A notebook's kernel; `created` tells it from another process with its pid, `board` is its ranks'."""

    pid: int
    created: float
    host: str
    notebook: str
    recorder: str = ""

    def __str__(self) -> str:
        return f"{self.notebook or 'another notebook'} (kernel process {self.pid})"

    @property
    def lives(self) -> bool:
        """Whether the kernel is there; one on another machine counts as there."""
        if self.host != socket.gethostname():
            return True
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created) < 1
        except psutil.Error:
            return False


def me(recorder: str) -> Holder:
    """Return this process as a holder; Jupyter tells a kernel its notebook's path."""
    name = os.path.basename(os.environ.get("JPY_SESSION_NAME", ""))
    return Holder(os.getpid(), psutil.Process().create_time(), socket.gethostname(), name, recorder)


def file_of(cluster: ipp.Cluster) -> Path:
    """Return the file that names the holder; it goes with the cluster (see lifeline.cluster_files)."""
    return Path(cluster_files(cluster.profile_dir, cluster.cluster_id)["owner"])


def holder(path: Path) -> Holder | None:
    """Return who holds the engines, dead or alive, if anybody has."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def other(path: Path) -> Holder | None:
    """Return the living notebook that holds the engines and is not this one."""
    who = holder(path)
    return who if who is not None and who.pid != os.getpid() and who.lives else None


def hold(path: Path, recorder: str) -> None:
    """Note that this process holds the engines now, and where their board is."""
    written = path.with_name(f"{path.name}-{os.getpid()}")
    written.write_text(json.dumps(asdict(me(recorder))))
    written.replace(path)


def release(path: Path) -> None:
    """Let go, if it is this process that holds them."""
    who = holder(path)
    if who is not None and who.pid == os.getpid():
        path.unlink(missing_ok=True)
