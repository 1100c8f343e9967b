"""The clusters that run on this machine, whoever started them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import ipyparallel as ipp
import psutil
from ipyparallel.util import _all_profile_dirs as all_profile_dirs

from labkit.cluster import profiles

# A cluster that a notebook starts carries its kernel's pid: it is that notebook's own, and ends with it.
OWN = f"notebook-{os.getpid()}"
# `labkit lab` names its engines to the kernels of its JupyterLab by this environment variable.
CHOSEN = "LABKIT_CLUSTER"
CONTROLLERS = {
    "ipyparallel.controller",
    "labkit.cluster.engine.controller",
    "labkit.cluster.engine.socket_controller",
}

quiet = logging.getLogger("labkit.cluster")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


def runs(state: dict) -> bool:
    """Tell whether a cluster file's controller is alive (and not another program with its old pid)."""
    try:
        return not CONTROLLERS.isdisjoint(psutil.Process(state["controller"]["state"]["pid"]).cmdline())
    except (KeyError, TypeError, psutil.Error):
        return False


def lives(process: psutil.Process) -> bool:
    """Tell whether a process runs; one that has ended, waited for or not, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two questions
        return False


def size_of(state: dict) -> int | None:
    """Return the number of engines that a cluster was started with."""
    sets = state.get("engines", {}).get("sets", {}).values()
    return sum(engines["n"] for engines in sets) or state["cluster"].get("n")


def running(profile: str) -> Iterator[tuple[Path, int | None]]:
    """Yield the file and the number of engines of each running cluster that this notebook may use."""
    folders = [Path(profile, "security") for profile in all_profile_dirs()]
    paths = [path for folder in folders for path in folder.glob("cluster-*.json")]
    for path in sorted(paths, key=lambda path: (name_of(path) != os.environ.get(CHOSEN), path)):
        if profiles.of(path) != profile or (name_of(path).startswith("notebook-") and name_of(path) != OWN):
            continue
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError):  # removed, or being written, as we look
            continue
        if runs(state):
            yield path, size_of(state)


def name_of(path: Path) -> str:
    """Return a cluster's id, of which its file's name is made; it is empty for a plain `ipcluster start`."""
    return path.stem.removeprefix("cluster-")


def attach(path: Path) -> ipp.Cluster:
    """Return the cluster that a cluster file describes; it stays its owner's."""
    return ipp.Cluster.from_file(str(path), parent=None, log=quiet)
