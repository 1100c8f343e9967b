"""Collectives of Python objects that begin only when all ranks have called the same one."""

from __future__ import annotations

import functools
from typing import Any

from mpi4py import MPI

from mpiwatch.rendezvous import ChannelComm

dumps, loads = MPI.pickle.dumps, MPI.pickle.loads


class WatchedObjects(ChannelComm):
    """Objects are pickled before the rendezvous.

    So the rank that has an object that cannot be pickled raises an error before it joins, and not inside a
    collective in which the other ranks wait for it.
    """

    def barrier(self) -> None:
        self._join("barrier")
        super().Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        sent = dumps(obj) if self.rank == root else None
        self._join("bcast", root)
        return loads(super().bcast(sent, root))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        sent = dumps(sendobj)
        self._join("gather", root)
        parts = super().gather(sent, root)
        return None if parts is None else [loads(part) for part in parts]

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        sent = self._pickled(sendobj) if self.rank == root else None
        self._join("scatter", root)
        return loads(super().scatter(sent, root))

    def allgather(self, sendobj: Any) -> list[Any]:
        sent = dumps(sendobj)
        self._join("allgather")
        return [loads(part) for part in super().allgather(sent)]

    def alltoall(self, sendobj: Any) -> list[Any]:
        sent = self._pickled(sendobj)
        self._join("alltoall")
        return [loads(part) for part in super().alltoall(sent)]

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        sent = dumps(sendobj)
        self._join("reduce", root, id(op))
        parts = super().gather(sent, root)
        return None if parts is None else functools.reduce(op, map(loads, parts))

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._join("allreduce", reduction=id(op))
        return functools.reduce(op, map(loads, super().allgather(sent)))

    def scan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._join("scan", reduction=id(op))
        return functools.reduce(op, map(loads, super().allgather(sent)[: self.rank + 1]))

    def exscan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._join("exscan", reduction=id(op))
        before = super().allgather(sent)[: self.rank]
        return functools.reduce(op, map(loads, before)) if before else None

    def _pickled(self, sendobj: Any) -> list[bytes]:
        pickles = [dumps(each) for each in sendobj]
        if len(pickles) != self.size:
            raise ValueError(f"expected {self.size} objects, one for each rank, got {len(pickles)}")
        return pickles
