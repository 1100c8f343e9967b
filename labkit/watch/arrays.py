"""Collectives of arrays that begin when all ranks have come to the same one."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI
from numpy import ndarray

from labkit.watch.flight_recorder.opcodes import OPERATIONS, UNKNOWN
from labkit.watch.rendezvous import Watched
from labkit.watch.signature import of, writable

IN_PLACE = MPI.IN_PLACE

# Numbers of the operations: looked up once, not at every call.
BARRIER, BCAST, REDUCE, ALLREDUCE = (OPERATIONS[name] for name in ("Barrier", "Bcast", "Reduce", "Allreduce"))


class WatchedArrays(Watched):
    """Buffers are compared by count and type before any data moves."""

    def Barrier(self) -> None:
        self._channel.meet(BARRIER, self.deadline_s, -1, -1, -1, -1)
        super().Barrier()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        count, kind = of(buf)
        if self.rank != root:
            writable(buf)
        self._channel.meet(BCAST, self.deadline_s, root, count, kind, -1)
        super().Bcast(buf, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if sendbuf is IN_PLACE else sendbuf
        if type(sent) is type(recvbuf) is ndarray and recvbuf.flags.carray and sent.flags.c_contiguous:
            count, kind = sent.size, sent.dtype.num  # in most calls; every microsecond counts
        else:
            count, kind = of(sent)
            writable(recvbuf)
        self._channel.meet(ALLREDUCE, self.deadline_s, -1, count, kind, id(op))
        super().Allreduce(sendbuf, recvbuf, op)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        count, kind = of(recvbuf if sendbuf is IN_PLACE else sendbuf)
        if self.rank == root:
            writable(recvbuf)
        self._channel.meet(REDUCE, self.deadline_s, root, count, kind, id(op))
        super().Reduce(sendbuf, recvbuf, op, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        here = self.rank == root
        self._parts("Gather", (recvbuf, self.size) if here else (sendbuf, 1), recvbuf if here else None, root)
        super().Gather(sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        here = self.rank == root
        self._types("Gatherv", recvbuf if here else sendbuf, recvbuf if here else None, root)
        super().Gatherv(sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        here = self.rank == root
        into = None if recvbuf is IN_PLACE else recvbuf
        self._parts("Scatter", (sendbuf, self.size) if here else (recvbuf, 1), into, root)
        super().Scatter(sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        here = self.rank == root
        into = None if recvbuf is IN_PLACE else recvbuf
        self._types("Scatterv", sendbuf if here else recvbuf, into, root)
        super().Scatterv(sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._parts("Allgather", (recvbuf, self.size), recvbuf)
        super().Allgather(sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._types("Allgatherv", recvbuf, recvbuf)
        super().Allgatherv(sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        self._parts("Alltoall", (recvbuf if sendbuf is IN_PLACE else sendbuf, self.size), recvbuf)
        super().Alltoall(sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._types("Alltoallv", recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf)
        super().Alltoallv(sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        self._bare("Alltoallw")
        super().Alltoallw(sendbuf, recvbuf)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        self._types("Reduce_scatter", recvbuf if sendbuf is IN_PLACE else sendbuf, recvbuf, op_=op)
        super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if sendbuf is IN_PLACE else sendbuf
        self._parts("Reduce_scatter_block", (sent, self.size), recvbuf, op_=op)
        super().Reduce_scatter_block(sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self._parts("Scan", (recvbuf if sendbuf is IN_PLACE else sendbuf, 1), recvbuf, op_=op)
        super().Scan(sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self._parts("Exscan", (recvbuf if sendbuf is IN_PLACE else sendbuf, 1), recvbuf, op_=op)
        super().Exscan(sendbuf, recvbuf, op)

    def _parts(
        self, op: str, buffer: tuple[Any, int], into: Any, root: int = UNKNOWN, *, op_: MPI.Op | None = None
    ) -> None:
        """Meet for a collective in which a part of a buffer has the same size and type on all ranks."""
        count, kind = of(*buffer)
        self._checked(op, count, kind, into, root, op_)

    def _types(
        self, op: str, buffer: Any, into: Any, root: int = UNKNOWN, *, op_: MPI.Op | None = None
    ) -> None:
        """Meet for a collective in which sizes differ from rank to rank."""
        _, kind = of(buffer)
        self._checked(op, UNKNOWN, kind, into, root, op_)

    def _checked(  # noqa: PLR0917
        self, op: str, count: int, kind: int, into: Any, root: int, op_: MPI.Op | None
    ) -> None:
        writable(into)
        how = UNKNOWN if op_ is None else id(op_)
        self._channel.meet(OPERATIONS[op], self.deadline_s, root, count, kind, how, depth=4)
