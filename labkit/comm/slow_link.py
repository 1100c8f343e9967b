"""Two networks of the same ranks, to compare: equal links, and one slow link."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mpi4py import MPI

from labkit import hosts
from labkit.comm.emulation import EmulatedComm, Link


@dataclass(frozen=True)
class Nets:
    """Communicators of the same ranks on equal links, and with one slow link; and each rank's link.

    On real hosts both are the same communicator: their links stay as they are.
    """

    are_real: bool
    equal: MPI.Intracomm
    slow: MPI.Intracomm
    equal_links: Sequence[Link]
    slow_links: Sequence[Link]

    @cached_property
    def usual(self) -> Link:
        """Return the fastest of the links."""
        return max(self.equal_links, key=lambda link: link.bytes_per_s)

    def __str__(self) -> str:
        """Return the links, by rank."""
        if self.are_real:
            return f"These are the links of real hosts: {', '.join(map(str, self.equal_links))}"
        equal, slow = (", ".join(map(str, links)) for links in (self.equal_links, self.slow_links))
        return f"These links are emulated:\n   equal links: {equal}\n   one slow link: {slow}"


def nets_with_a_slow_link(comm: MPI.Intracomm, usual: Link, factor: float, slow_rank: int = -1) -> Nets:
    """Return the networks of a communicator's ranks; a negative `slow_rank` counts from the end. Collective.

    The links are emulated, each of them `usual` but that of the slow rank, which is `factor` times slower. If
    every rank is on a host of `labkit hosts`, they are those of the hosts.
    """
    bandwidths = comm.bcast(_bandwidths() if comm.rank == 0 else None)
    names = comm.allgather(socket.gethostname())
    if all(name in bandwidths for name in names):
        links = [Link(bandwidths[name] / 8) for name in names]
        return Nets(True, comm, comm, links, links)
    equal_links = [usual] * comm.size
    slow_links = equal_links.copy()
    slow_links[slow_rank] = usual.slower(factor)
    equal, slow = EmulatedComm(comm, equal_links), EmulatedComm(comm, slow_links)
    return Nets(False, equal, slow, equal_links, slow_links)


def _bandwidths() -> dict[str, float]:
    """Return the bandwidth (bit/s) of each of this machine's hosts, by name; nothing if there are none."""
    try:
        return {host.name: host.bandwidth for host in hosts.running().hosts}
    except hosts.HostsError:
        return {}
