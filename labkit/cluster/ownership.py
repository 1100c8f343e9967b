"""Which notebook uses a cluster's engines. One at a time: the collectives of two would mix."""

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
class Owner:
    """The notebook kernel that uses the engines, and the path of their flight recorder.

    `created` is the time when the process started: another process may have its pid later.
    """

    pid: int
    created: float
    host: str
    notebook: str
    recorder: str = ""

    def __str__(self) -> str:
        return f"{self.notebook or 'another notebook'} (kernel process {self.pid})"

    @property
    def alive(self) -> bool:
        """Whether the kernel runs; a kernel on another machine counts as running."""
        if self.host != socket.gethostname():
            return True
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created) < 1
        except psutil.Error:
            return False


def owner_file(cluster: ipp.Cluster) -> Path:
    """Return the file that names the owner of a cluster's engines; it is removed with the cluster."""
    return Path(cluster_files(cluster.profile_dir, cluster.cluster_id)["owner"])


def owner(file: Path) -> Owner | None:
    """Return the last owner of the engines, alive or not; None if they never had one or it released them."""
    try:
        return Owner(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def other_owner(file: Path) -> Owner | None:
    """Return the owner of the engines if it is alive and is not this process."""
    found = owner(file)
    return found if found is not None and found.pid != os.getpid() and found.alive else None


def claim(file: Path, recorder: str) -> None:
    """Make this process the owner of the engines, whose flight recorder is at the path `recorder`."""
    # Jupyter sets this variable to the path of the kernel's notebook.
    notebook = os.path.basename(os.environ.get("JPY_SESSION_NAME", ""))
    me = Owner(os.getpid(), psutil.Process().create_time(), socket.gethostname(), notebook, recorder)
    written = file.with_name(f"{file.name}-{os.getpid()}")
    written.write_text(json.dumps(asdict(me)))
    written.replace(file)


def release(file: Path) -> None:
    """Give the engines up if this process is their owner."""
    found = owner(file)
    if found is not None and found.pid == os.getpid():
        file.unlink(missing_ok=True)
