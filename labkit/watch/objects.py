"""Collectives of Python objects that begin when all ranks have come to the same one."""

from __future__ import annotations

import functools
from typing import Any

from mpi4py import MPI

from labkit.watch.rendezvous import Watched

dumps, loads = MPI.pickle.dumps, MPI.pickle.loads


class WatchedObjects(Watched):
    """Objects are pickled before the ranks meet.

    What cannot be pickled, or reduced, is an error on the rank that has it, and not inside a collective that
    the others are in.
    """

    def barrier(self) -> None:
        self._bare("barrier")
        super().Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        sent = dumps(obj) if self.rank == root else None
        self._bare("bcast", root)
        return loads(super().bcast(sent, root))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        sent = dumps(sendobj)
        self._bare("gather", root)
        parts = super().gather(sent, root)
        return None if parts is None else [loads(part) for part in parts]

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        sent = self._chunks(sendobj) if self.rank == root else None
        self._bare("scatter", root)
        return loads(super().scatter(sent, root))

    def allgather(self, sendobj: Any) -> list[Any]:
        sent = dumps(sendobj)
        self._bare("allgather")
        return [loads(part) for part in super().allgather(sent)]

    def alltoall(self, sendobj: Any) -> list[Any]:
        sent = self._chunks(sendobj)
        self._bare("alltoall")
        return [loads(part) for part in super().alltoall(sent)]

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        sent = dumps(sendobj)
        self._bare("reduce", root, id(op))
        parts = super().gather(sent, root)
        return None if parts is None else functools.reduce(op, map(loads, parts))

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._bare("allreduce", how=id(op))
        return functools.reduce(op, map(loads, super().allgather(sent)))

    def scan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._bare("scan", how=id(op))
        return functools.reduce(op, map(loads, super().allgather(sent)[: self.rank + 1]))

    def exscan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._bare("exscan", how=id(op))
        before = super().allgather(sent)[: self.rank]
        return functools.reduce(op, map(loads, before)) if before else None

    def _chunks(self, sendobj: Any) -> list[bytes]:
        chunks = [dumps(chunk) for chunk in sendobj]
        if len(chunks) != self.size:
            raise ValueError(f"expected {self.size} objects, one for each rank, got {len(chunks)}")
        return chunks
