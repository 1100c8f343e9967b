"""Memory that the ranks of a node share: segments (MPI calls them windows), each with one row for every rank.

All ranks of a node allocate and free a segment together, but Python drops an array on each rank at its own
time. So a segment that one rank no longer uses stays until no rank uses it, and is used again or freed when
the next array is allocated. When the program ends, its segments go with its processes: both MPI libraries
unlink a segment's file as soon as all ranks have mapped it.
"""

from __future__ import annotations

import os
import weakref
from functools import partial

import numpy as np
from mpi4py import MPI

from labkit.leftovers import SHM
from labkit.units import approx_size

PAGE = 4096


class SharedSegment:
    """Shared memory of one node. `rows` is (ranks of the node, bytes), uint8. Making one is collective."""

    def __init__(self, node: MPI.Intracomm, nbytes: int) -> None:
        length = max(1, -(-nbytes // PAGE)) * PAGE
        self.win = MPI.Win.Allocate_shared(length, 1, comm=node)
        self.win.Lock_all(MPI.MODE_NOCHECK)  # until it is freed: Sync needs it, and each rank writes unasked
        first, _ = self.win.Shared_query(0)  # the rows of the other ranks follow that of the first one
        memory = MPI.memory.fromaddress(first.address, node.size * length)
        self.rows: np.ndarray = np.asarray(memory).reshape(node.size, length)
        self.base = first.address + node.rank * length
        self.in_use = False

    def allocate(self, rank: int, n: int, dtype: np.dtype) -> np.ndarray:
        """Return the first n values of this rank's row as zeros, in use until no array views them."""
        array = np.frombuffer(self.rows[rank].data, dtype, n)
        array[...] = 0
        self.in_use = True
        weakref.finalize(array, partial(setattr, self, "in_use", False)).atexit = False
        return array

    def start_of(self, array: np.ndarray) -> int:
        """Return where the array starts in this rank's row, in bytes; -1 if it is not in this row."""
        start = int(array.__array_interface__["data"][0]) - self.base
        return start if start >= 0 and start + array.nbytes <= self.rows.shape[1] else -1

    def free(self) -> None:
        """Return the memory to the system. Collective on the node."""
        self.win.Unlock_all()
        self.win.Free()


class SharedSegments:
    """The shared segments of the ranks of one node."""

    def __init__(self, node: MPI.Intracomm) -> None:
        self.node = node
        self.segments: dict[int, SharedSegment] = {}  # by a number that is the same on all ranks
        self._made = 0

    def allocate(self, n: int, dtype: np.dtype) -> np.ndarray | str:
        """Return n zeros of this rank's own, or why there is no room for them. Collective on the node."""
        need = n * dtype.itemsize
        for number in self._unused():
            if self.segments[number].rows.shape[1] >= need:
                return self.segments[number].allocate(self.node.rank, n, dtype)
        self.free()
        if fault := self.node.bcast(_no_room(need * self.node.size) if self.node.rank == 0 else None):
            return fault
        self._made += 1
        segment = self.segments[self._made] = SharedSegment(self.node, need)
        return segment.allocate(self.node.rank, n, dtype)

    def _unused(self) -> list[int]:
        mine = {number for number, segment in self.segments.items() if not segment.in_use}
        return sorted(mine.intersection(*self.node.allgather(mine)))

    def free(self) -> None:
        """Free the segments that no rank uses. Collective on the node."""
        for number in self._unused():
            self.segments.pop(number).free()

    def locate(self, array: np.ndarray) -> tuple[int, int]:
        """Return the number of the array's segment and where it starts there (bytes); (0, 0) if in none."""
        for number, segment in self.segments.items():
            if (start := segment.start_of(array)) >= 0:
                return number, start
        return 0, 0

    def rows(self, number: int, start: int, n: int, dtype: np.dtype) -> np.ndarray:
        """Return the n values at `start` (bytes) of every rank of the node. Shape: (ranks, n)."""
        return self.segments[number].rows[:, start : start + n * dtype.itemsize].view(dtype)

    def sync(self) -> None:
        """Make this rank's writes visible to the others, and theirs to this rank (between two barriers)."""
        for segment in self.segments.values():
            segment.win.Sync()


def _no_room(nbytes: int) -> str | None:
    """Return a message if there is too little shared memory: touching more than there is kills a rank."""
    if not os.path.isdir(SHM):
        return None
    disk = os.statvfs(SHM)
    free = disk.f_bavail * disk.f_frsize
    if nbytes <= free:
        return None
    return (
        f"expected {approx_size(nbytes)} free in {SHM} for the gradients of all ranks of the node, got "
        f"{approx_size(free)}; make it larger (in a container: --shm-size) or use another algorithm"
    )
