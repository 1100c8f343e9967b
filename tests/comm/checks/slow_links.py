"""Two networks of the same ranks: equal links, and one slow link."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.comm import EmulatedComm, Link, nets_with_a_slow_link

USUAL = Link(1e6, 1e-3)


def check_one_rank_of_an_emulated_network_has_a_slow_link(comm: MPI.Intracomm) -> None:
    nets = nets_with_a_slow_link(comm, USUAL, 4)
    assert not nets.are_real and nets.usual == USUAL
    assert nets.equal_links == [USUAL] * comm.size
    assert nets.slow_links == [*[USUAL] * (comm.size - 1), USUAL.slower(4)]
    for net, links in ((nets.equal, nets.equal_links), (nets.slow, nets.slow_links)):
        assert isinstance(net, EmulatedComm) and net.links == links
        total = np.ones(2)
        net.Allreduce(MPI.IN_PLACE, total)
        assert total.tolist() == [comm.size] * 2
    assert nets_with_a_slow_link(comm, USUAL, 4, 0).slow_links[0] == USUAL.slower(4)
    assert str(nets).startswith("These links are emulated:\n   equal links: 8mbit+1ms")
