"""The files of a cluster, ipyparallel's and the lab's. The module needs Python alone: supervisors use it."""

from __future__ import annotations

import contextlib
import os

from labkit.cluster.adapter import files


def cluster_files(profile_dir: str, cluster_id: str) -> dict[str, str]:
    """Return the paths of the files that describe a cluster and its ranks: ipyparallel's, and the lab's.

    The lab's are `lock` (locked by the kernel that has the engines), `exits` (how each rank ended), `reports`
    (hang reports, one line of JSON each) and `place` (what the place notes about these engines, in JSON).
    """
    names = ("lock", "exits", "reports", "place")
    of_the_lab = {name: f"{profile_dir}/log/{name}-{cluster_id}" for name in names}
    return files.cluster_files(profile_dir, cluster_id) | of_the_lab


def files_of_this_cluster() -> dict[str, str]:
    """Return the cluster_files of the cluster that this process belongs to."""
    return cluster_files(*files.this_cluster())


def exits_in(file: os.PathLike[str]) -> list[tuple[int, int]]:
    """Return the process id of each rank that has ended, and its exit code or minus its signal, in order.

    `labkit.forking.record_exit` writes the file: called by the process that has forked the ranks, or, where
    Open MPI's mpiexec starts them, by each rank's stand-in.
    """
    with contextlib.suppress(OSError, ValueError), open(file) as lines:
        return [(int(pid), int(code)) for pid, code in map(str.split, lines)]
    return []
