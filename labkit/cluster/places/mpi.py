"""The profile `mpi`: ranks on this machine."""

from __future__ import annotations

from labkit import limits
from labkit.cluster.places.errors import ClusterError
from labkit.cluster.places.place import Place
from labkit.text import counted


class ThisMachine(Place):
    """The machine of the notebook, whose limits decide how many ranks can start."""

    def before_start(self, n: int, hosts: str | None) -> dict[str, str]:
        for lack in limits.lacks(n):
            raise ClusterError(f"{counted(n, 'rank')} cannot start: {lack}")
        return {}


PLACE = ThisMachine()
