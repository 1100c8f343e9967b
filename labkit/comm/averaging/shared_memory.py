"""All-reduce in memory that the ranks of a node share: on one machine, without any message.

Each rank adds up its chunk of all gradients where they lie, and writes the sum into all of them. Between
nodes, each chunk of the nodes' sums then travels around a ring of its own, all rings at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import cast

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.aggregate import add_up
from labkit.comm.averaging.segments import SharedSegments
from labkit.comm.errors import raise_together
from labkit.comm.running.executor import run
from labkit.schedules import chunk_bounds, ring_allreduce


def by_node(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return the communicator of this rank's node. Collective."""
    return cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank))


class _Node:
    """The node of this rank for one communicator: the ranks that share memory, and this rank's work."""

    def __init__(self, comm: MPI.Intracomm, node: MPI.Intracomm) -> None:
        self.comm, self.rank = node, node.rank
        # Every node cuts a gradient into the same number of chunks, so that the rings between nodes close.
        workers = comm.allreduce(node.size, MPI.MIN)
        several = comm.allreduce(int(node.rank == 0)) > 1
        # Connects the ranks that own the same chunk on different nodes. It is the null communicator on a rank
        # that owns no chunk, and on all ranks if there is only one node.
        color = node.rank if several and node.rank < workers else MPI.UNDEFINED
        self.same_chunk = cast(MPI.Intracomm, comm.Split(color, comm.rank))
        self.chunks = workers if several else node.size
        self.segments = SharedSegments(node)
        self.copy = np.empty(0)
        # One cache line for each rank, in which it announces its gradient: segment, start and factor.
        self._own_row = self.segments.allocate(8, np.dtype(np.float64))
        assert not isinstance(self._own_row, str), self._own_row
        self.table = self.segments.rows(*self.segments.locate(self._own_row), 8, np.dtype(np.float64))

    def barrier(self) -> None:
        """Wait for all ranks of the node; then each sees what the others wrote before."""
        self.segments.sync()
        self.comm.Barrier()
        self.segments.sync()

    def chunk(self, n: int) -> tuple[int, int]:
        """Return where this rank's chunk of n values starts and stops."""
        if self.rank >= self.chunks:
            return 0, 0
        bounds = chunk_bounds(n, self.chunks)
        return int(bounds[self.rank]), int(bounds[self.rank + 1])

    def add_up(self, rows: np.ndarray, factors: np.ndarray, into_all: bool) -> None:
        """Leave the weighted sum of the rows, over all nodes, in the first row or in all of them."""
        add_up(rows, factors, rows if into_all and not self.same_chunk else rows[0])
        if self.same_chunk:
            run(self.same_chunk, ring_allreduce(self.same_chunk.size), rows[0])
            if into_all:
                rows[1:] = rows[0]

    def close(self) -> None:
        """Free what no rank uses any more. Collective on the node."""
        self.copy = self.table = self._own_row = np.empty(0)
        self.segments.free()
        for comm in self.comm, self.same_chunk:
            if comm:
                comm.Free()


def _close(comm: MPI.Comm, key: int, node: _Node) -> None:
    if comm != MPI.COMM_WORLD:  # MPI_Finalize frees that one, too late for a collective
        node.close()


class SharedMemory:
    """The all-reduce algorithm "shared-memory" (see algorithms.py); use its instance `shared_memory`.

    A gradient that `array` made is averaged where it lies. Any other gradient is copied into shared memory
    and back, which takes about twice as long. The ranks of `group(comm)` share memory: those of a node.
    """

    def __init__(self, group: Callable[[MPI.Intracomm], MPI.Intracomm] = by_node) -> None:
        self._group = group

    @cached_property
    def _key(self) -> int:
        return MPI.Comm.Create_keyval(delete_fn=_close)

    def _node(self, comm: MPI.Intracomm) -> _Node:
        node = comm.Get_attr(self._key)
        if not isinstance(node, _Node):
            node = _Node(comm, self._group(comm))
            comm.Set_attr(self._key, node)
        return node

    def array(self, comm: MPI.Intracomm, n: int, dtype: type | np.dtype = np.float32) -> np.ndarray:
        """Return n zeros of this rank's own in memory that its node shares. Shape: (n,), n as on all ranks.

        The memory is used again when no array views it any more; after MPI_Finalize it is gone. Collective.
        Raise CollectiveError on every rank if there is too little shared memory.
        """
        array = self._node(comm).segments.allocate(n, np.dtype(dtype))
        raise_together(comm, array if isinstance(array, str) else None)
        assert not isinstance(array, str)
        return array

    def __call__(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        """Leave the sum of all ranks' gradients, each times its weight, in place. Shape: gradient (n,)."""
        if comm.size == 1:
            gradient *= gradient.dtype.type(weight)
            return
        node = self._node(comm)
        node.table[node.rank, :3] = *node.segments.locate(gradient), weight
        node.barrier()
        announced = node.table[:, :3].copy()
        in_place = announced[0, 0] > 0 and bool((announced[:, :2] == announced[0, :2]).all())
        if in_place:
            segment, start = int(announced[0, 0]), int(announced[0, 1])
        else:
            segment, start = self._copied(node, gradient)
        rows = node.segments.rows(segment, start, gradient.size, gradient.dtype)
        first, stop = node.chunk(gradient.size)
        node.add_up(rows[:, first:stop], announced[:, 2].astype(gradient.dtype), in_place)
        node.barrier()
        if not in_place:
            gradient[...] = rows[0]

    def _copied(self, node: _Node, gradient: np.ndarray) -> tuple[int, int]:
        """Copy the gradients of the node into shared memory; return their segment and start there."""
        if node.copy.dtype != gradient.dtype or node.copy.size < gradient.size:
            node.copy = np.empty(0)  # so that its memory can be freed before the larger one is allocated
            array = node.segments.allocate(gradient.size, gradient.dtype)
            if isinstance(array, str):
                raise OSError(array)
            node.copy = array
        node.copy[: gradient.size] = gradient
        node.barrier()
        return node.segments.locate(node.copy)


shared_memory = SharedMemory()
shared_array = shared_memory.array
