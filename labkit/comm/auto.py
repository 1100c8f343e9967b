"""The all-reduce algorithm `auto`: shared memory where it is faster, the MPI library's own elsewhere.

On one machine, ranks that add up gradients where they lie copy nothing, and win from a certain size on.
docs/training.md has the measurements behind that size.
"""

from __future__ import annotations

from mpi4py import MPI

from labkit.comm.emulation import EmulatedComm
from labkit.comm.shared_memory import NAME as SHARED_MEMORY
from labkit.comm.shared_memory import on_one_machine
from labkit.units import MIB

SHARED_MEMORY_FROM = MIB  # bytes that are averaged at once


def chosen(comm: MPI.Intracomm, nbytes: int) -> str:
    """Return the algorithm with which `auto` averages `nbytes` bytes at once. Collective.

    Emulated links stand for several machines: shared memory would send nothing over them.
    """
    if nbytes >= SHARED_MEMORY_FROM and not isinstance(comm, EmulatedComm) and on_one_machine(comm):
        return SHARED_MEMORY
    return "mpi"
