"""Find the clusters that run on this machine, whichever program started them."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil

from labkit.cluster import ipyparallel_private as private
from labkit.cluster import profiles
from labkit.cluster.ownership import Claim
from mpiwatch.processes import alive

# A cluster that a notebook starts is named after its kernel: no other notebook uses it. Machines may share a
# home folder, so the machine is part of the name.
THIS_PROCESS = f"{socket.gethostname()}-{os.getpid()}"
OWN = f"notebook-{THIS_PROCESS}"
# `labkit lab` sets this environment variable to the id of its cluster, for the kernels of its JupyterLab.
CHOSEN = "LABKIT_CLUSTER"
LAB = "lab-"  # followed by THIS_PROCESS of `labkit lab`
CONTROLLERS = {
    "ipyparallel.controller",
    "labkit.cluster.engine.controller",
    "labkit.cluster.engine.socket_controller",
}

quiet = logging.getLogger("labkit.cluster")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


def is_controller_running(state: dict[str, Any]) -> bool:
    """Return whether the controller in a cluster file runs, and its pid is not another program's by now."""
    pid = private.controller_pid(state)
    try:
        return pid is not None and not CONTROLLERS.isdisjoint(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def is_running(process: psutil.Process) -> bool:
    """Return whether a process runs, and its pid is not another process's by now; a zombie does not run."""
    return process.is_running() and alive(process.pid)


def running(profile: str) -> Iterator[tuple[Path, int | None]]:
    """Yield the cluster file and the number of engines of each running cluster that this notebook may use."""
    paths = [path for folder in private.profile_dirs() for path in folder.glob("security/cluster-*.json")]
    for path in sorted(paths, key=lambda path: (id_of(path) != os.environ.get(CHOSEN), path)):
        if profiles.of(path) != profile or belongs_to_another(id_of(path)):
            continue
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError):  # just removed, or not written completely yet
            continue
        if is_controller_running(state):
            yield path, private.size_of(state)


def belongs_to_another(cluster_id: str) -> bool:
    """Return whether a cluster ends with another notebook, or with a JupyterLab that is not this kernel's."""
    chosen = os.environ.get(CHOSEN, cluster_id)  # outside of `labkit lab`, as in VS Code, any will do
    return (cluster_id.startswith("notebook-") and cluster_id != OWN) or (
        cluster_id.startswith(LAB) and cluster_id != chosen
    )


def preferred(paths: Iterable[Path]) -> Path | None:
    """Return the cluster file whose engines this notebook should use; None if there is none.

    The engines that it uses already come first, then free ones, then those that another notebook holds
    without running a cell on them, then busy ones. Of equals, the first is preferred.
    """
    return min(paths, key=lambda path: claim(path).state(), default=None)


def claim(path: Path) -> Claim:
    """Return this notebook's claim on the cluster that a cluster file describes."""
    return Claim(str(path.parent.parent), id_of(path))


def id_of(path: Path) -> str:
    """Return the id of the cluster that a cluster file describes; empty for a plain `ipcluster start`."""
    return path.stem.removeprefix("cluster-")


def attach(path: Path) -> ipp.Cluster:
    """Return the cluster that a cluster file describes, without taking charge of its end."""
    return private.attach(path, parent=None, log=quiet)
