"""The all-reduce algorithm `auto`: for large gradients shared memory or the ring, else the MPI library's own.

On one machine, ranks that add up gradients where they lie copy nothing, and win from a certain size on. On
several machines, a ring keeps every link busy in both directions. docs/training.md has the measurements
behind both sizes.
"""

from __future__ import annotations

from mpi4py import MPI

from labkit.comm.emulation import EmulatedComm
from labkit.comm.shared_memory import NAME as SHARED_MEMORY
from labkit.comm.shared_memory import on_one_machine
from labkit.units import MIB

LIBRARY, RING = "mpi", "ring"
SHARED_MEMORY_FROM = MIB  # bytes that are averaged at once
RING_FROM = MIB


def chosen(comm: MPI.Intracomm, nbytes: int) -> str:
    """Return the algorithm with which `auto` averages `nbytes` bytes at once. Collective.

    Emulated links stand for several machines, and on them the library's own algorithm takes as long as the
    best one would.
    """
    if comm.size == 1 or isinstance(comm, EmulatedComm):
        return LIBRARY
    if on_one_machine(comm):
        return SHARED_MEMORY if nbytes >= SHARED_MEMORY_FROM else LIBRARY
    return RING if nbytes >= RING_FROM else LIBRARY
