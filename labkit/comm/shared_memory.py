"""All-reduce in memory that the ranks of a node share: on one machine, without any message.

Each rank adds up its chunk of all gradients where they lie, and writes the sum into all of them. Between
nodes, each chunk of the nodes' sums then travels around a ring of its own, all rings at the same time.

The memory comes in segments (MPI calls them windows), each with one row for every rank of the node. All ranks
of a node allocate and free a segment together, but Python drops an array on each rank at its own time. So a
segment that one rank no longer uses stays until no rank uses it, and is freed before the next array is
allocated. When the program ends, its segments go with its processes: both MPI libraries unlink a segment's
file as soon as all ranks have mapped it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import cache
from typing import cast

import numpy as np
from mpi4py import MPI

from labkit.comm.aggregate import add_up
from labkit.comm.running import Steps, steps
from labkit.schedules import chunk_bounds, ring_allreduce
from labkit.units import approx_size
from mpiwatch import layers
from mpiwatch.layers import CommWrapper, Pending, raise_together
from mpiwatch.processes import SHM

NAME = "shared-memory"
BARRIERS = 3  # the column of a rank's counter in its node's table
BARRIERS_PER_ATTEMPT = 1 << 32
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
        self.array: Callable[[], np.ndarray | None] = lambda: None  # this rank's; None if nothing views it

    def allocate(self, rank: int, n: int, dtype: np.dtype) -> np.ndarray:
        """Return this rank's row as an array of n zeros."""
        array = np.frombuffer(self.rows[rank].data, dtype, n)
        array[...] = 0
        self.array = weakref.ref(array)
        return array

    def start_of(self, array: np.ndarray) -> int:
        """Return where the array starts in this rank's row, in bytes; -1 if it is not in this row."""
        start = int(array.__array_interface__["data"][0]) - self.base
        return start if start >= 0 and start + array.nbytes <= self.rows.shape[1] else -1


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


def by_node(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return the communicator of this rank's node. Collective."""
    return cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank))


def most_on_a_machine(comm: MPI.Intracomm) -> int:
    """Return how many ranks share memory, at most. Collective; each communicator asks once."""
    answer = comm.Get_attr(_most_key())
    if not isinstance(answer, int):
        node = by_node(comm)
        answer = MPI.Intracomm.allreduce(comm, node.size, MPI.MAX)
        node.Free()
        comm.Set_attr(_most_key(), answer)
    return answer


@cache
def _most_key() -> int:
    return MPI.Comm.Create_keyval()


class _Node:
    """The node of this rank for one communicator: the ranks that share memory, their segments, their work."""

    def __init__(self, comm: MPI.Intracomm, node: MPI.Intracomm) -> None:
        self.comm = node
        self.rank = node.rank
        # Every node cuts a gradient into the same number of chunks, so that the rings between nodes close.
        workers = comm.allreduce(node.size, MPI.MIN)
        several = comm.allreduce(int(node.rank == 0)) > 1
        # Connects the ranks that own the same chunk on different nodes. It is the null communicator on a rank
        # that owns no chunk, and on all ranks if there is only one node.
        color = node.rank if several and node.rank < workers else MPI.UNDEFINED
        self.same_chunk = cast(MPI.Intracomm, comm.Split(color, comm.rank))
        self.chunks = workers if several else node.size
        self.segments: dict[int, SharedSegment] = {}  # by a number that is the same on all ranks
        self._made = 0
        self.copy = np.empty(0)
        # One cache line for each rank, in which it announces its gradient (segment, start and factor) and
        # counts the barriers that it has reached.
        self._own_row = self.allocate(8, np.dtype(np.float64))
        self.table = self.rows(*self.locate(self._own_row), 8, self._own_row.dtype)

    def allocate(self, n: int, dtype: np.dtype) -> np.ndarray:
        """Return n zeros of this rank's own. Raise OSError if there is no room. Collective on the node."""
        need = n * dtype.itemsize
        self._free_unused()
        fault = self.comm.bcast(_no_room(need * self.comm.size) if self.rank == 0 else None)
        if fault:
            raise OSError(fault)
        self._made += 1
        segment = self.segments[self._made] = SharedSegment(self.comm, need)
        return segment.allocate(self.rank, n, dtype)

    def _free_unused(self) -> None:
        """Free the segments that no rank uses. Collective on the node."""
        unused = {number for number, segment in self.segments.items() if segment.array() is None}
        for number in sorted(unused.intersection(*self.comm.allgather(unused))):
            win = self.segments.pop(number).win
            win.Unlock_all()
            win.Free()

    def locate(self, array: np.ndarray) -> tuple[int, int]:
        """Return the number of the array's segment and where it starts there (bytes); (0, 0) if in none."""
        for number, segment in self.segments.items():
            start = segment.start_of(array)
            if start >= 0:
                return number, start
        return 0, 0

    def rows(self, number: int, start: int, n: int, dtype: np.dtype) -> np.ndarray:
        """Return the n values at `start` (bytes) of every rank of the node. Shape: (ranks, n)."""
        return self.segments[number].rows[:, start : start + n * dtype.itemsize].view(dtype)

    def barrier(self) -> Steps:
        """Wait for all ranks of the node; then each sees what the others wrote before.

        The ranks watch one another's counters, which needs no message and tells which rank is missing. After
        a hang they count on from a new number: some had reached a barrier that the others never did.
        """
        self._sync()
        reached = max(self._own_row[BARRIERS], layers.attempt() * BARRIERS_PER_ATTEMPT) + 1
        self._own_row[BARRIERS] = reached
        counters = self.table[:, BARRIERS]

        def over() -> bool:
            if counters.min() >= reached:
                return True
            MPI.COMM_SELF.Iprobe(0, 0)  # a missing rank may be waiting for a message that this one has sent
            return False

        def pending() -> Pending:
            return Pending(self.comm, NAME, np.flatnonzero(counters < reached).tolist(), [])

        if not over():
            yield over, pending
        self._sync()

    def _sync(self) -> None:
        """Make this rank's writes visible to the others, and theirs to this rank (between two barriers)."""
        for segment in self.segments.values():
            segment.win.Sync()

    def add_up(self, rows: np.ndarray, factors: np.ndarray, into_all: bool) -> Steps:
        """Leave the weighted sum of all nodes' rows in this rank's chunk of the first row, or of all."""
        if self.rank >= self.chunks:
            return
        first, stop = chunk_bounds(rows.shape[1], self.chunks)[self.rank : self.rank + 2].tolist()
        part = rows[:, first:stop]
        add_up(part, factors, part if into_all and not self.same_chunk else part[0])
        if self.same_chunk:
            yield from steps(self.same_chunk, ring_allreduce(self.same_chunk.size), part[0])
            if into_all:
                part[1:] = part[0]

    def copied(self, gradient: np.ndarray) -> tuple[int, int]:
        """Copy the gradient into shared memory; return its segment and start. Collective on the node."""
        if self.copy.dtype != gradient.dtype or self.copy.size < gradient.size:
            self.copy = np.empty(0)  # so that its memory can be freed before the larger one is allocated
            self.copy = self.allocate(gradient.size, gradient.dtype)
        self.copy[: gradient.size] = gradient
        return self.locate(self.copy)

    def close(self) -> None:
        """Free what no rank uses any more. Collective on the node."""
        self.copy = self.table = self._own_row = np.empty(0)
        self._free_unused()
        for comm in self.comm, self.same_chunk:
            if comm:
                comm.Free()


def _node(comm: MPI.Intracomm) -> _Node:
    """Return this rank's node, which the communicator keeps. Collective at the first call."""
    node = comm.Get_attr(_key())
    if not isinstance(node, _Node):
        node = _Node(comm, by_node(comm))
        comm.Set_attr(_key(), node)
    return node


@cache
def _key() -> int:
    def close(comm: MPI.Comm, key: int, node: _Node) -> None:
        if comm != MPI.COMM_WORLD:  # MPI_Finalize frees that one, too late for a collective
            node.close()

    return MPI.Comm.Create_keyval(delete_fn=close)


def shared_array(comm: MPI.Intracomm, n: int, dtype: type | np.dtype = np.float32) -> np.ndarray:
    """Return n zeros of this rank's own in memory that its node shares. Shape: (n,), n as on all ranks.

    The memory is freed when no array views it any more; after MPI_Finalize it is gone. Collective.
    Raise CollectiveError on every rank if there is too little shared memory.
    """
    node, fault = _node(comm), None
    try:
        array = node.allocate(n, np.dtype(dtype))
    except OSError as error:
        fault = str(error)
    raise_together(comm, fault)
    return array


def shared_memory(comm: MPI.Intracomm, gradient: np.ndarray, factor: float, blocking: bool) -> Steps:
    """Leave the sum of all ranks' gradients, each times its factor, in place (see `Algorithm`).

    A gradient that `shared_array` made is averaged where it lies. Any other one is copied into shared memory
    and back, which takes about twice as long. Nothing waits otherwise than by yielding, except the first use
    of a communicator, and of a gradient that has to be copied and is larger than those before.
    """
    if blocking and isinstance(comm, CommWrapper):
        comm._before_schedule(NAME, gradient)
    if comm.size == 1:
        gradient *= gradient.dtype.type(factor)
        return
    node = _node(comm)
    node.table[node.rank, :BARRIERS] = *node.locate(gradient), factor
    yield from node.barrier()
    announced = node.table[:, :BARRIERS].copy()
    in_place = announced[0, 0] > 0 and bool((announced[:, :2] == announced[0, :2]).all())
    if in_place:
        segment, start = int(announced[0, 0]), int(announced[0, 1])
    else:
        segment, start = node.copied(gradient)
        yield from node.barrier()
    rows = node.rows(segment, start, gradient.size, gradient.dtype)
    yield from node.add_up(rows, announced[:, 2].astype(gradient.dtype), in_place)
    yield from node.barrier()
    if not in_place:
        gradient[...] = rows[0]
