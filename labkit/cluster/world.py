"""What each engine reports about its MPI world, and whether the engines form the world that was wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cluster.errors import ClusterError


@dataclass(frozen=True)
class RankInfo:
    """What a rank reports about itself; `library` is the MPI library that its mpi4py has loaded."""

    rank: int
    size: int
    pid: int
    host: str
    library: str


def check_world(infos: Sequence[RankInfo], launcher: str) -> None:
    """Raise ClusterError unless the engines form one MPI world with engine id = rank.

    `infos` holds the engines' reports, by engine id. `launcher` says what started the engines: the path of an
    mpiexec, or the name of a launcher without one.
    """
    n = len(infos)
    if n > 1 and all(info.size == 1 for info in infos):
        raise ClusterError(
            f"the {n} engines are {n} MPI worlds of one rank each, not one world of {n}. {launcher} started "
            f"them and does not belong to {infos[0].library}, the MPI that mpi4py uses. Stop this cluster "
            f"(`ipcluster stop`, or the cluster panel), then run the cell with `connect()` again: it starts "
            f"engines with this environment's mpiexec."
        )
    for engine, info in enumerate(infos):
        if info.size != n or info.rank != engine:
            raise ClusterError(
                f"engine {engine} is rank {info.rank} of {info.size}; expected rank {engine} of {n}. "
                f"Start all engines at once with `ipcluster start --engines=MPI -n {n}`."
            )
