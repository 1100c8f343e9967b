"""What the notebook's side uses of ipyparallel beyond its documented interface, in one place.

tests/cluster/test_ipyparallel_private.py checks each of these against the installed version. The programs in
labkit/cluster/engine replace parts of ipyparallel's engine and controller; each says which.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel import util


def profile_dirs() -> list[Path]:
    """Return all of this user's IPython profile folders."""
    # ipyparallel.util has no public function for it; `ipcluster list` uses this one.
    return [Path(folder) for folder in util._all_profile_dirs()]


def futures(result: ipp.AsyncResult) -> dict[int, Any]:
    """Return the future of each engine's part of a result, by engine id."""
    # AsyncResult keeps one future per message in _children and their engines in _targets, in the same order.
    return dict(zip(result._targets, result._children, strict=True))


def process_of(launcher: Any) -> psutil.Process | None:
    """Return the process on this machine that a launcher of a controller or of engines has started."""
    # LocalProcessLauncher, the base of the local and the MPI launchers, sets .process when it starts one or
    # is restored from a cluster file. Launchers for batch systems and ssh have none.
    process = getattr(launcher, "process", None)
    return process if isinstance(process, psutil.Process) else None


def controller_pid(state: dict[str, Any]) -> int | None:
    """Return the process id of the controller that a cluster file describes, None if it has none."""
    # Cluster.to_dict() writes the file; a local launcher's state holds a pid, a batch system's a job id.
    # labkit.supervisor reads the same entry.
    pid = ((state.get("controller") or {}).get("state") or {}).get("pid")
    return pid if isinstance(pid, int) else None


def size_of(state: dict[str, Any]) -> int | None:
    """Return the number of engines that the cluster of a cluster file was started with, None if unknown."""
    sets = (state.get("engines") or {}).get("sets") or {}
    return sum(engines["n"] for engines in sets.values()) or (state.get("cluster") or {}).get("n")


def engine_sets(cluster: ipp.Cluster) -> list[Any]:
    """Return the launchers of a cluster's sets of engines."""
    return list(cluster.engines.values())


def mpiexec_of(launcher: Any) -> str:
    """Return the path of the mpiexec that an MPI launcher runs; empty for any other launcher."""
    # MPILauncher.mpi_cmd is a documented setting; its last word is mpiexec (cluster_profiles/mpi).
    command = getattr(launcher, "mpi_cmd", None)
    return str(command[-1]) if command else ""
