"""The all-reduce algorithm `auto`: for large gradients shared memory or the ring, else the MPI library's own.

On one machine, ranks that add up gradients where they lie copy nothing, and win from a certain size on.
Between machines with a rank each, a ring keeps every link busy in both directions. docs/training.md has the
measurements behind both sizes.
"""

from __future__ import annotations

from mpi4py import MPI

from labkit.comm.emulation import EmulatedComm
from labkit.comm.shared_memory import NAME as SHARED_MEMORY
from labkit.comm.shared_memory import most_on_a_machine
from labkit.units import MIB

LIBRARY, RING = "mpi", "ring"
SHARED_MEMORY_FROM = MIB  # bytes that are averaged at once
RING_FROM = MIB  # bytes in each message of the ring


def chosen(comm: MPI.Intracomm, nbytes: int) -> str:
    """Return the algorithm with which `auto` averages `nbytes` bytes at once. Collective.

    Emulated links stand for several machines, and on them the library's own algorithm takes as long as the
    best one would. On several machines with several ranks, the library can first add up on each machine,
    and then it sends less.
    """
    if comm.size == 1 or isinstance(comm, EmulatedComm):
        return LIBRARY
    most = most_on_a_machine(comm)
    if most == comm.size and nbytes >= SHARED_MEMORY_FROM:
        return SHARED_MEMORY
    if most == 1 and nbytes / comm.size >= RING_FROM:
        return RING
    return LIBRARY
