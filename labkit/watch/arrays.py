"""Collectives of arrays that begin only when all ranks have called the same one."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI
from numpy import ndarray

from labkit.comm.message import is_in_place
from labkit.watch.flight_recorder.opcodes import OPERATIONS, UNKNOWN
from labkit.watch.rendezvous import ChannelComm
from labkit.watch.signature import check_writable, signature

IN_PLACE = MPI.IN_PLACE

# Looked up once, not at every call.
BARRIER, BCAST, REDUCE, ALLREDUCE = (OPERATIONS[name] for name in ("Barrier", "Bcast", "Reduce", "Allreduce"))


class WatchedArrays(ChannelComm):
    """Counts and dtypes are compared before any data moves."""

    def Barrier(self) -> None:
        self._channel.rendezvous(BARRIER, self.deadline_s, -1, -1, -1, -1)
        super().Barrier()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        count, dtype = signature(buf)
        if self.rank != root:
            check_writable(buf)
        self._channel.rendezvous(BCAST, self.deadline_s, root, count, dtype, -1)
        super().Bcast(buf, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if sendbuf is IN_PLACE or sendbuf is None else sendbuf
        if type(sent) is type(recvbuf) is ndarray and recvbuf.flags.carray and sent.flags.c_contiguous:
            count, dtype = sent.size, sent.dtype.num  # in most calls; every microsecond counts
        else:
            count, dtype = signature(sent)
            check_writable(recvbuf)
        self._channel.rendezvous(ALLREDUCE, self.deadline_s, -1, count, dtype, id(op))
        super().Allreduce(sendbuf, recvbuf, op)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        count, dtype = signature(recvbuf if is_in_place(sendbuf) else sendbuf)
        if self.rank == root:
            check_writable(recvbuf)
        self._channel.rendezvous(REDUCE, self.deadline_s, root, count, dtype, id(op))
        super().Reduce(sendbuf, recvbuf, op, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        is_root = self.rank == root
        blocks = (recvbuf, self.size) if is_root else (sendbuf, 1)
        self._join_blocks("Gather", blocks, recvbuf if is_root else None, root)
        super().Gather(sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        is_root = self.rank == root
        self._join_dtype("Gatherv", recvbuf if is_root else sendbuf, recvbuf if is_root else None, root)
        super().Gatherv(sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        blocks = (sendbuf, self.size) if self.rank == root else (recvbuf, 1)
        self._join_blocks("Scatter", blocks, recvbuf, root)
        super().Scatter(sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._join_dtype("Scatterv", sendbuf if self.rank == root else recvbuf, recvbuf, root)
        super().Scatterv(sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join_blocks("Allgather", (recvbuf, self.size), recvbuf)
        super().Allgather(sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join_dtype("Allgatherv", recvbuf, recvbuf)
        super().Allgatherv(sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join_blocks("Alltoall", (recvbuf if is_in_place(sendbuf) else sendbuf, self.size), recvbuf)
        super().Alltoall(sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join_dtype("Alltoallv", recvbuf if is_in_place(sendbuf) else sendbuf, recvbuf)
        super().Alltoallv(sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join("Alltoallw")
        super().Alltoallw(sendbuf, recvbuf)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        self._join_dtype("Reduce_scatter", recvbuf if is_in_place(sendbuf) else sendbuf, recvbuf, op=op)
        super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Reduce_scatter_block", (sent, self.size), recvbuf, op=op)
        super().Reduce_scatter_block(sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self._join_blocks("Scan", (recvbuf if is_in_place(sendbuf) else sendbuf, 1), recvbuf, op=op)
        super().Scan(sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self._join_blocks("Exscan", (recvbuf if is_in_place(sendbuf) else sendbuf, 1), recvbuf, op=op)
        super().Exscan(sendbuf, recvbuf, op)

    def _join_blocks(
        self,
        name: str,
        blocks: tuple[Any, int],
        received: Any,
        root: int = UNKNOWN,
        *,
        op: MPI.Op | None = None,
    ) -> None:
        """Join a collective in which a block of a buffer has the same count and dtype on all ranks."""
        check_writable(received)
        count, dtype = signature(*blocks)
        reduction = UNKNOWN if op is None else id(op)
        self._channel.rendezvous(OPERATIONS[name], self.deadline_s, root, count, dtype, reduction, depth=3)

    def _join_dtype(
        self, name: str, buffer: Any, received: Any, root: int = UNKNOWN, *, op: MPI.Op | None = None
    ) -> None:
        """Join a collective in which the counts differ from rank to rank."""
        check_writable(received)
        _, dtype = signature(buffer, for_each_rank=True)
        reduction = UNKNOWN if op is None else id(op)
        self._channel.rendezvous(OPERATIONS[name], self.deadline_s, root, UNKNOWN, dtype, reduction, depth=3)
