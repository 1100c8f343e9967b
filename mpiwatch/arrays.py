"""Collectives of arrays that begin only when all ranks have called the same one."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI
from numpy import ndarray

from mpiwatch.flight_recorder.opcodes import OPERATIONS, UNKNOWN
from mpiwatch.message import is_in_place
from mpiwatch.rendezvous import ChannelComm
from mpiwatch.signature import check_buffers, check_writable, signature

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
        if type(buf) is not ndarray:
            check_buffers(self, "Bcast", (buf,))
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
            check_buffers(self, "Allreduce", (sendbuf, recvbuf))
        self._channel.rendezvous(ALLREDUCE, self.deadline_s, -1, count, dtype, id(op))
        super().Allreduce(sendbuf, recvbuf, op)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        count, dtype = signature(recvbuf if is_in_place(sendbuf) else sendbuf)
        if type(sendbuf) is not ndarray or type(recvbuf) is not ndarray:
            check_buffers(self, "Reduce", (sendbuf, recvbuf), root)
        if self.rank == root:
            check_writable(recvbuf)
        self._channel.rendezvous(REDUCE, self.deadline_s, root, count, dtype, id(op))
        super().Reduce(sendbuf, recvbuf, op, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        is_root = self.rank == root
        blocks = (recvbuf, self.size) if is_root else (sendbuf, 1)
        self._join_blocks("Gather", sendbuf, recvbuf if is_root else None, blocks, root)
        super().Gather(sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        received = recvbuf if self.rank == root else None
        self._join_dtype("Gatherv", sendbuf, received, sendbuf if received is None else received, root)
        super().Gatherv(sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        blocks = (sendbuf, self.size) if self.rank == root else (recvbuf, 1)
        self._join_blocks("Scatter", sendbuf, recvbuf, blocks, root)
        super().Scatter(sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        compared = sendbuf if self.rank == root else recvbuf
        self._join_dtype("Scatterv", sendbuf, recvbuf, compared, root)
        super().Scatterv(sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join_blocks("Allgather", sendbuf, recvbuf, (recvbuf, self.size))
        super().Allgather(sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join_dtype("Allgatherv", sendbuf, recvbuf, recvbuf)
        super().Allgatherv(sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Alltoall", sendbuf, recvbuf, (sent, self.size))
        super().Alltoall(sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_dtype("Alltoallv", sendbuf, recvbuf, sent)
        super().Alltoallv(sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        check_buffers(self, "Alltoallw", (sendbuf, recvbuf))
        self._join("Alltoallw")
        super().Alltoallw(sendbuf, recvbuf)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_dtype("Reduce_scatter", sendbuf, recvbuf, sent, op=op)
        super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Reduce_scatter_block", sendbuf, recvbuf, (sent, self.size), op=op)
        super().Reduce_scatter_block(sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Scan", sendbuf, recvbuf, (sent, 1), op=op)
        super().Scan(sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Exscan", sendbuf, recvbuf, (sent, 1), op=op)
        super().Exscan(sendbuf, recvbuf, op)

    def _join_blocks(
        self,
        name: str,
        sendbuf: Any,
        recvbuf: Any,
        compared: tuple[Any, int],
        root: int = UNKNOWN,
        *,
        op: MPI.Op | None = None,
    ) -> None:
        """Join a collective in which a block of `compared` has the same count and dtype on all ranks."""
        if type(sendbuf) is not ndarray or type(recvbuf) is not ndarray:
            check_buffers(self, name, (sendbuf, recvbuf), root)
        check_writable(recvbuf)
        count, dtype = signature(*compared)
        reduction = UNKNOWN if op is None else id(op)
        self._channel.rendezvous(OPERATIONS[name], self.deadline_s, root, count, dtype, reduction, depth=3)

    def _join_dtype(
        self,
        name: str,
        sendbuf: Any,
        recvbuf: Any,
        compared: Any,
        root: int = UNKNOWN,
        *,
        op: MPI.Op | None = None,
    ) -> None:
        """Join a collective in which the counts differ from rank to rank."""
        if type(sendbuf) is not ndarray or type(recvbuf) is not ndarray:
            check_buffers(self, name, (sendbuf, recvbuf), root)
        check_writable(recvbuf)
        _, dtype = signature(compared, for_each_rank=True)
        reduction = UNKNOWN if op is None else id(op)
        self._channel.rendezvous(OPERATIONS[name], self.deadline_s, root, UNKNOWN, dtype, reduction, depth=3)
