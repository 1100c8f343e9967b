"""Memory that the ranks of a node share: windows of MPI, each a row of the same length for every rank.

A window is made and freed by all ranks of the node together, but Python lets go of an array on each rank in
its own time. So a window that a rank has let go of waits until all of them have, and is lent out again or
freed when the next one is asked for. What is left when the program ends goes with its processes: both MPI
libraries take a window's file off the disk as soon as all ranks have it mapped.
"""

from __future__ import annotations

import os
import weakref
from functools import partial

import numpy as np
from mpi4py import MPI

PAGE = 4096
SHM = "/dev/shm"


class Window:
    """`rows` (ranks of the node, bytes), uint8: what each rank has of it. Collective on the node."""

    def __init__(self, node: MPI.Intracomm, nbytes: int) -> None:
        length = max(1, -(-nbytes // PAGE)) * PAGE
        self.win = MPI.Win.Allocate_shared(length, 1, comm=node)
        self.win.Lock_all(MPI.MODE_NOCHECK)  # for good: ranks write by themselves, and Sync needs it
        first, _ = self.win.Shared_query(0)  # the others' memory follows on the first one's
        memory = MPI.memory.fromaddress(first.address, node.size * length)
        self.rows: np.ndarray = np.asarray(memory).reshape(node.size, length)
        self.base = first.address + node.rank * length
        self.lent = False

    def lend(self, rank: int, n: int, dtype: np.dtype) -> np.ndarray:
        """Return this rank's first n values, as zeros; they are given back when nobody looks at them."""
        array = np.frombuffer(self.rows[rank].data, dtype, n)
        array[...] = 0
        self.lent = True
        weakref.finalize(array, partial(setattr, self, "lent", False)).atexit = False
        return array

    def start_of(self, array: np.ndarray) -> int:
        """Return where, in bytes from the start of this rank's row, the array lies; -1 if elsewhere."""
        start = int(array.__array_interface__["data"][0]) - self.base
        return start if start >= 0 and start + array.nbytes <= self.rows.shape[1] else -1

    def free(self) -> None:
        """Give the memory back to the system. Collective on the node."""
        self.win.Unlock_all()
        self.win.Free()


class Pool:
    """The windows of the ranks of one node."""

    def __init__(self, node: MPI.Intracomm) -> None:
        self.node = node
        self.windows: dict[int, Window] = {}  # by a number that is the same on all ranks
        self._made = 0

    def lend(self, n: int, dtype: np.dtype) -> np.ndarray | str:
        """Return n zeros of this rank's in a window, or what is in the way. Collective on the node."""
        need = n * dtype.itemsize
        for number in self._idle():
            if self.windows[number].rows.shape[1] >= need:
                return self.windows[number].lend(self.node.rank, n, dtype)
        self.free()
        if fault := self.node.bcast(_no_room(need * self.node.size) if self.node.rank == 0 else None):
            return fault
        self._made += 1
        window = self.windows[self._made] = Window(self.node, need)
        return window.lend(self.node.rank, n, dtype)

    def _idle(self) -> list[int]:
        mine = {number for number, window in self.windows.items() if not window.lent}
        return sorted(mine.intersection(*self.node.allgather(mine)))

    def free(self) -> None:
        """Free the windows that all ranks have let go of. Collective on the node."""
        for number in self._idle():
            self.windows.pop(number).free()

    def find(self, array: np.ndarray) -> tuple[int, int]:
        """Return the number of the window that the array lies in, and where; (0, 0) if in none."""
        for number, window in self.windows.items():
            if (start := window.start_of(array)) >= 0:
                return number, start
        return 0, 0

    def rows(self, number: int, start: int, n: int, dtype: np.dtype) -> np.ndarray:
        """Return the n values at `start` (bytes) of every rank of the node. Shape: (ranks, n)."""
        return self.windows[number].rows[:, start : start + n * dtype.itemsize].view(dtype)

    def sync(self) -> None:
        """Have what this rank has written be seen by those who come later, and the other way round."""
        for window in self.windows.values():
            window.win.Sync()


def _no_room(nbytes: int) -> str | None:
    """Return what to tell where so much shared memory cannot be had: touching it would kill the ranks."""
    if not os.path.isdir(SHM):
        return None
    disk = os.statvfs(SHM)
    free = disk.f_bavail * disk.f_frsize
    if nbytes <= free:
        return None
    return (
        f"expected {nbytes / 2**20:.0f} MiB free in {SHM} for the gradients of all ranks of the node, got "
        f"{free / 2**20:.0f} MiB; give it more (a container: --shm-size) or average another way"
    )
