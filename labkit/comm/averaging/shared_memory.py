"""Averaging in memory that the ranks of a node share: no message at all on one machine.

Each rank adds up its slice of all gradients, where they lie, and writes the sum back to all. Between nodes,
equal slices of the nodes' sums go around a ring each, all at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import cast

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.aggregate import add_up
from labkit.comm.averaging.shared_segments import Pool
from labkit.comm.errors import raise_together
from labkit.comm.running.executor import run
from labkit.schedules import chunk_bounds, ring_allreduce


def by_node(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return the communicator of this rank's node. Collective."""
    return cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank))


class _Node:
    """The node of this rank, in one communicator: whom it shares memory with, and its part of the work."""

    def __init__(self, comm: MPI.Intracomm, node: MPI.Intracomm) -> None:
        self.comm, self.rank = node, node.rank
        workers = comm.allreduce(node.size, MPI.MIN)  # on each node; equally many, or rings would not close
        several = comm.allreduce(int(node.rank == 0)) > 1
        # The ranks of the same number on all nodes; null on a rank too many, and where there is one node.
        number = node.rank if several and node.rank < workers else MPI.UNDEFINED
        self.column = cast(MPI.Intracomm, comm.Split(number, comm.rank))
        self.slices = workers if several else node.size
        self.pool = Pool(node)
        self.copy = np.empty(0)
        # A line of cache for each rank, where it tells: number of window, place in it, factor.
        self._own_row = self.pool.lend(8, np.dtype(np.float64))
        assert not isinstance(self._own_row, str), self._own_row
        self.table = self.pool.rows(*self.pool.find(self._own_row), 8, np.dtype(np.float64))

    def meet(self) -> None:
        """Wait until all ranks of the node are here; then each sees what the others have written."""
        self.pool.sync()
        self.comm.Barrier()
        self.pool.sync()

    def slice(self, n: int) -> tuple[int, int]:
        """Return where this rank's part of n values starts and stops."""
        if self.rank >= self.slices:
            return 0, 0
        ends = chunk_bounds(n, self.slices)
        return int(ends[self.rank]), int(ends[self.rank + 1])

    def add_up(self, rows: np.ndarray, factors: np.ndarray, to_all: bool) -> None:
        """Leave the weighted sum of the rows, over all nodes, in the first row or in all of them."""
        add_up(rows, factors, rows if to_all and not self.column else rows[0])
        if self.column:
            run(self.column, ring_allreduce(self.column.size), rows[0])
            if to_all:
                rows[1:] = rows[0]

    def close(self) -> None:
        """Free what no rank looks at any more. Collective on the node."""
        self.copy = self.table = self._own_row = np.empty(0)
        self.pool.free()
        for comm in self.comm, self.column:
            if comm:
                comm.Free()


def _leave(comm: MPI.Comm, key: int, node: _Node) -> None:
    if comm != MPI.COMM_WORLD:  # that one goes in MPI_Finalize, too late for a collective
        node.close()


class SharedMemory:
    """A way to average (see algorithms.py) in memory that ranks share; `shared` is the one to use.

    A gradient that `array` has made is averaged where it is; any other one is copied into such memory and
    back, which takes about twice as long. The ranks of `group(comm)` share memory: those of a node.
    """

    def __init__(self, group: Callable[[MPI.Intracomm], MPI.Intracomm] = by_node) -> None:
        self._group = group

    @cached_property
    def _key(self) -> int:
        return MPI.Comm.Create_keyval(delete_fn=_leave)

    def _node(self, comm: MPI.Intracomm) -> _Node:
        known = comm.Get_attr(self._key)
        if not isinstance(known, _Node):
            known = _Node(comm, self._group(comm))
            comm.Set_attr(self._key, known)
        return known

    def array(self, comm: MPI.Intracomm, n: int, dtype: type | np.dtype = np.float32) -> np.ndarray:
        """Return n zeros in memory that this rank's node shares. Shape: (n,), n alike on all ranks.

        To every rank its own. The memory is given back when no array looks into it any more; after
        MPI_Finalize it is gone. Collective. Too little shared memory is a CollectiveError on every rank.
        """
        lent = self._node(comm).pool.lend(n, np.dtype(dtype))
        raise_together(comm, lent if isinstance(lent, str) else None)
        assert not isinstance(lent, str)
        return lent

    def __call__(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        """Leave the sum of all ranks' gradients, each times its share, in place. Shapes: gradient (n,)."""
        if comm.size == 1:
            gradient *= gradient.dtype.type(weight)
            return
        node = self._node(comm)
        node.table[node.rank, :3] = *node.pool.find(gradient), weight
        node.meet()
        said = node.table[:, :3].copy()
        in_place = said[0, 0] > 0 and bool((said[:, :2] == said[0, :2]).all())
        if in_place:
            window, start = int(said[0, 0]), int(said[0, 1])
        else:
            window, start = self._copied(node, gradient)
        rows = node.pool.rows(window, start, gradient.size, gradient.dtype)
        begin, end = node.slice(gradient.size)
        node.add_up(rows[:, begin:end], said[:, 2].astype(gradient.dtype), in_place)
        node.meet()
        if not in_place:
            gradient[...] = rows[0]

    def _copied(self, node: _Node, gradient: np.ndarray) -> tuple[int, int]:
        """Copy the gradients of the node into memory it shares; return where that is."""
        if node.copy.dtype != gradient.dtype or node.copy.size < gradient.size:
            node.copy = np.empty(0)  # given back, for the larger one
            lent = node.pool.lend(gradient.size, gradient.dtype)
            if isinstance(lent, str):
                raise OSError(lent)
            node.copy = lent
        node.copy[: gradient.size] = gradient
        node.meet()
        return node.pool.find(node.copy)


shared_memory = SharedMemory()
shared_array = shared_memory.array
