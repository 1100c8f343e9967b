"""How ranks ended, from the lines that their exit recorders write (labkit.cluster.engine.exit_recorder)."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ipyparallel as ipp

from labkit.leftovers import cluster_files


@dataclass(frozen=True)
class RankExit:
    """How a rank ended; `code` is its exit code, or minus the number of the signal that killed it."""

    rank: int
    code: int

    def __str__(self) -> str:
        if self.code < 0:
            return f"rank {self.rank} was killed by signal {-self.code} ({signal.Signals(-self.code).name})"
        return f"rank {self.rank} ended with exit code {self.code}"


def exits_file(cluster: ipp.Cluster) -> Path:
    """Return the file to which the exit recorders of a cluster's ranks append."""
    return Path(cluster_files(cluster.profile_dir, cluster.cluster_id)["exits"])


def first_exit(file: Path, ranks: Mapping[int, int]) -> RankExit | None:
    """Return which rank ended first, or None if none did. `ranks` gives the rank of each process id."""
    lines = file.read_text().splitlines() if file.exists() else []
    for line in lines:
        pid, code = map(int, line.split())
        if pid in ranks:
            return RankExit(ranks[pid], code)
    return None
