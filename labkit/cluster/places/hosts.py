"""The profile `hosts`: one rank on each host that `labkit hosts up` creates."""

from __future__ import annotations

from labkit import hosts
from labkit.cluster.places.place import Place


class EmulatedHosts(Place):
    """Hosts with shaped links on this machine."""

    def check(self, n: int) -> None:
        hosts.running(n)


PLACE = EmulatedHosts()
