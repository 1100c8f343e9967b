"""All-reduce in memory that the ranks of a node share: on one machine, without any message.

Each rank adds up its chunk of all gradients where they lie, and writes the sum into all of them. Between
nodes, each chunk of the nodes' sums then travels around a ring of its own, all rings at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import cast

import numpy as np
from mpi4py import MPI

from labkit.comm.averaging.aggregate import add_up
from labkit.comm.averaging.segments import SharedSegments
from labkit.comm.running.executor import steps
from labkit.schedules import chunk_bounds, ring_allreduce
from mpiwatch import waiting
from mpiwatch.errors import raise_together
from mpiwatch.waiting import Pending, Waits, complete
from mpiwatch.wrapper import CommWrapper

NAME = "shared-memory"
BARRIERS = 3  # the column of a rank's counter in its node's table
BARRIERS_PER_ATTEMPT = 1 << 32


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
        # One cache line for each rank, in which it announces its gradient (segment, start and factor) and
        # counts the barriers that it has reached.
        own_row = self.segments.allocate(8, np.dtype(np.float64))
        assert not isinstance(own_row, str), own_row
        self._own_row = own_row
        self.table = self.segments.rows(*self.segments.locate(own_row), 8, own_row.dtype)

    def barrier(self) -> Iterator[Waits]:
        """Wait for all ranks of the node; then each sees what the others wrote before.

        The ranks watch one another's counters, which needs no message and tells which rank is missing. After
        a hang they count on from a new number: some had reached a barrier that the others never did.
        """
        self.segments.sync()
        reached = max(self._own_row[BARRIERS], waiting.attempt() * BARRIERS_PER_ATTEMPT) + 1
        self._own_row[BARRIERS] = reached
        counters = self.table[:, BARRIERS]
        while counters.min() < reached:
            yield partial(self._pending, reached)
            MPI.COMM_SELF.Iprobe(0, 0)  # a missing rank may be waiting for a message that this one has sent
        self.segments.sync()

    def count_alike(self) -> None:
        """Give all ranks of the node the same count of barriers: an interrupt may have left some behind.

        Collective, between two calls in which all ranks wait for one another.
        """
        self._own_row[BARRIERS] = self.table[:, BARRIERS].max()

    def _pending(self, reached: float) -> Pending:
        return Pending(self.comm, NAME, np.flatnonzero(self.table[:, BARRIERS] < reached).tolist(), [])

    def chunk(self, n: int) -> tuple[int, int]:
        """Return where this rank's chunk of n values starts and stops."""
        if self.rank >= self.chunks:
            return 0, 0
        bounds = chunk_bounds(n, self.chunks)
        return int(bounds[self.rank]), int(bounds[self.rank + 1])

    def add_up(self, rows: np.ndarray, factors: np.ndarray, into_all: bool) -> Iterator[Waits]:
        """Leave the weighted sum of the rows, over all nodes, in the first row or in all of them."""
        add_up(rows, factors, rows if into_all and not self.same_chunk else rows[0])
        if self.same_chunk:
            yield from steps(self.same_chunk, ring_allreduce(self.same_chunk.size), rows[0])
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
        node = self._node(comm)
        array = node.segments.allocate(n, np.dtype(dtype))
        node.count_alike()
        raise_together(comm, array if isinstance(array, str) else None)
        assert not isinstance(array, str)
        return array

    def __call__(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> None:
        """Leave the sum of all ranks' gradients, each times its weight, in place. Shape: gradient (n,)."""
        if isinstance(comm, CommWrapper):
            comm._before_schedule(NAME, gradient)
        complete(self.steps(comm, gradient, weight))

    def steps(self, comm: MPI.Intracomm, gradient: np.ndarray, weight: float) -> Iterator[Waits]:
        """Do the same as a generator that yields wherever this rank has to wait for another one.

        Nothing of it waits otherwise, except the first use of a communicator, and of a gradient that `array`
        did not make and that is larger than those before.
        """
        if comm.size == 1:
            gradient *= gradient.dtype.type(weight)
            return
        node = self._node(comm)
        node.table[node.rank, :BARRIERS] = *node.segments.locate(gradient), weight
        yield from node.barrier()
        announced = node.table[:, :BARRIERS].copy()
        in_place = announced[0, 0] > 0 and bool((announced[:, :2] == announced[0, :2]).all())
        if in_place:
            segment, start = int(announced[0, 0]), int(announced[0, 1])
        else:
            segment, start = self._copied(node, gradient)
            yield from node.barrier()
        rows = node.segments.rows(segment, start, gradient.size, gradient.dtype)
        first, stop = node.chunk(gradient.size)
        yield from node.add_up(rows[:, first:stop], announced[:, 2].astype(gradient.dtype), in_place)
        yield from node.barrier()
        if not in_place:
            gradient[...] = rows[0]

    def _copied(self, node: _Node, gradient: np.ndarray) -> tuple[int, int]:
        """Copy the gradient into shared memory; return its segment and start. Collective on the node."""
        if node.copy.dtype != gradient.dtype or node.copy.size < gradient.size:
            node.copy = np.empty(0)  # so that its memory can be freed before the larger one is allocated
            array = node.segments.allocate(gradient.size, gradient.dtype)
            if isinstance(array, str):
                raise OSError(array)
            node.copy = array
        node.copy[: gradient.size] = gradient
        return node.segments.locate(node.copy)


shared_memory = SharedMemory()
shared_array = shared_memory.array
