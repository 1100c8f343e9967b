"""The files that describe a cluster of ipyparallel's. Supervisors use this module: it needs Python alone."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # every engine waits for the start of its supervisor, which does not wait for the import
    from typing import Any

# ipyparallel sets these for the controllers and engines that it starts.
PROFILE_DIR, CLUSTER_ID = "IPP_PROFILE_DIR", "IPP_CLUSTER_ID"


def cluster_files(profile_dir: str, cluster_id: str) -> dict[str, str]:
    """Return the paths of the files that ipyparallel writes for a cluster.

    They are `cluster`, which describes it, `client` and `engine`, by which both find the controller, and
    `engines`, which the controller writes.
    """
    security, log = f"{profile_dir}/security", f"{profile_dir}/log"
    controller = f"{security}/ipcontroller-{cluster_id}" if cluster_id else f"{security}/ipcontroller"
    return {
        "cluster": f"{security}/cluster-{cluster_id}.json",
        "client": f"{controller}-client.json",
        "engine": f"{controller}-engine.json",
        "engines": f"{log}/engines{cluster_id}.json",
    }


def cluster_id_of(file: str) -> str:
    """Return the id of the cluster that a cluster file describes; empty for a plain `ipcluster start`."""
    return os.path.basename(file).removeprefix("cluster-").removesuffix(".json")


def logs_of_engines(profile_dir: str, cluster_id: str) -> str:
    """Return how the paths of the logs of a cluster's engines begin."""
    return f"{profile_dir}/log/ipengine-{cluster_id}-"


def this_cluster() -> tuple[str, str]:
    """Return the profile folder and the id of the cluster that this process belongs to; empty without one."""
    return os.environ.get(PROFILE_DIR, ""), os.environ.get(CLUSTER_ID, "")


def controller_pid(state: dict[str, Any]) -> int | None:
    """Return the process id of the controller that a cluster file describes, None if it has none."""
    # Cluster.to_dict() writes the file; a local launcher's state holds a pid, a batch system's a job id.
    pid = ((state.get("controller") or {}).get("state") or {}).get("pid")
    return pid if isinstance(pid, int) else None


def read_controller_pid(cluster_file: str) -> int | None:
    """Return the same from a file; None if the file is missing, or not written completely yet."""
    try:
        with open(cluster_file) as file:
            return controller_pid(json.load(file))
    except (OSError, ValueError):
        return None


def size_of(state: dict[str, Any]) -> int | None:
    """Return the number of engines that the cluster of a cluster file was started with, None if unknown."""
    sets = (state.get("engines") or {}).get("sets") or {}
    return sum(engines["n"] for engines in sets.values()) or (state.get("cluster") or {}).get("n")
