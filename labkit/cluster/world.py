"""What the engines say of the MPI world they are in, and whether it is the one that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ClusterError(RuntimeError):
    """The engines are not what the lab needs; the message says why, and what to do."""

    def _render_traceback_(self) -> list[str]:  # IPython shows these lines in place of a traceback
        return [f"ClusterError: {self}"]


@dataclass(frozen=True)
class Introduction:
    """What a rank says of itself; `library` is the MPI library that its mpi4py has loaded."""

    rank: int
    size: int
    pid: int
    host: str
    library: str


def check_world(ranks: Sequence[Introduction], launcher: str) -> None:
    """Raise unless the engines, given in the order of their ids, are one world with engine id = rank.

    `launcher` names what has started them: the mpiexec's path, or the kind of launcher that uses none.
    """
    n = len(ranks)
    if n > 1 and all(one.size == 1 for one in ranks):
        raise ClusterError(
            f"the {n} engines are {n} MPI worlds of one rank each, not one world of {n}: they were started "
            f"by {launcher}, which is not of {ranks[0].library}, the MPI that mpi4py uses. Stop this "
            f"cluster, then call connect() again, which starts engines with this environment's mpiexec."
        )
    for engine, one in enumerate(ranks):
        if one.size != n or one.rank != engine:
            raise ClusterError(
                f"engine {engine} is rank {one.rank} of {one.size}; expected rank {engine} of {n}. "
                f"Start engines with `ipcluster start --engines=MPI -n {n}`, all at once."
            )
