"""A communicator that does not freeze: a collective that a rank never joins is an error, with the reason.

Before each blocking collective its ranks meet on the board (see board.py): each notes what it is about to
call and waits, in Python, until all others have come to the same. Only then MPI's own collective is called,
which can no longer hang, and no data moves in one whose calls differ. The price: every collective
synchronises, as MPI allows it to. Blocking messages are their non-blocking twins, asked again and again.

It is MPI's own communicator otherwise: a class derived from mpi4py's, around the same handle.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

from mpi4py import MPI

from labkit.comm import watch as watching
from labkit.comm.board import RUNS, Board
from labkit.comm.errors import raise_together
from labkit.comm.hang import OPS
from labkit.comm.messages import WatchingMessages
from labkit.comm.signature import UNKNOWN, of, reduction, writable
from labkit.comm.watch import Channel, NoChannel, Watch

dumps, loads = MPI.pickle.dumps, MPI.pickle.loads
IN_PLACE = MPI.IN_PLACE

# Numbers of the operations: looked up once, not at every call.
BARRIER, BCAST, REDUCE, ALLREDUCE = (OPS[name] for name in ("Barrier", "Bcast", "Reduce", "Allreduce"))


class WatchingCollectives(WatchingMessages, MPI.Intracomm):
    """Collectives that begin when all ranks have come to the same one."""

    _channel: Channel | NoChannel = NoChannel()
    deadline_s: float = watching.DEADLINE_S

    @property
    def watch(self) -> Watch | None:
        """What watches: one for all communicators of a process."""
        return self._channel.watch if isinstance(self._channel, Channel) else None

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
        count, kind = of(recvbuf if sendbuf is IN_PLACE else sendbuf)
        writable(recvbuf)
        self._channel.meet(ALLREDUCE, self.deadline_s, -1, count, kind, reduction(op))
        super().Allreduce(sendbuf, recvbuf, op)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        count, kind = of(recvbuf if sendbuf is IN_PLACE else sendbuf)
        if self.rank == root:
            writable(recvbuf)
        self._channel.meet(REDUCE, self.deadline_s, root, count, kind, reduction(op))
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

    # Python objects are pickled before the ranks meet: what cannot be pickled, or reduced, is an error on the
    # rank that has it, and not inside a collective that the others are in.

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
        sent = self._pieces(sendobj) if self.rank == root else None
        self._bare("scatter", root)
        return loads(super().scatter(sent, root))

    def allgather(self, sendobj: Any) -> list[Any]:
        sent = dumps(sendobj)
        self._bare("allgather")
        return [loads(part) for part in super().allgather(sent)]

    def alltoall(self, sendobj: Any) -> list[Any]:
        sent = self._pieces(sendobj)
        self._bare("alltoall")
        return [loads(part) for part in super().alltoall(sent)]

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        sent = dumps(sendobj)
        self._bare("reduce", root, reduction(op))
        parts = super().gather(sent, root)
        return None if parts is None else functools.reduce(op, map(loads, parts))

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._bare("allreduce", how=reduction(op))
        return functools.reduce(op, map(loads, super().allgather(sent)))

    def scan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._bare("scan", how=reduction(op))
        return functools.reduce(op, map(loads, super().allgather(sent)[: self.rank + 1]))

    def exscan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._bare("exscan", how=reduction(op))
        before = super().allgather(sent)[: self.rank]
        return functools.reduce(op, map(loads, before)) if before else None

    # What is made from a watched communicator is watched.

    def Dup(self, info: MPI.Info | None = None) -> Any:
        self._bare("Dup")
        return self._opened(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Any:
        self._bare("Dup_with_info")
        return self._opened(super().Dup_with_info(info))

    def Clone(self) -> Any:
        self._bare("Clone")
        return self._opened(super().Clone())

    def Split(self, color: int = 0, key: int = 0) -> Any:
        self._bare("Split")
        return self._opened(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        self._bare("Split_type")
        return self._opened(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Any:
        self._bare("Create")
        return self._opened(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        return self._opened(super().Create_group(group, tag))  # the group's ranks alone call it

    def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Any:
        self._bare("Create_cart")
        return self._opened(super().Create_cart(dims, periods, reorder))

    def Create_graph(self, index: Any, edges: Any, reorder: bool = False) -> Any:
        self._bare("Create_graph")
        return self._opened(super().Create_graph(index, edges, reorder))

    def Create_dist_graph(self, *arguments: Any, **named: Any) -> Any:
        self._bare("Create_dist_graph")
        return self._opened(super().Create_dist_graph(*arguments, **named))

    def Create_dist_graph_adjacent(self, *arguments: Any, **named: Any) -> Any:
        self._bare("Create_dist_graph_adjacent")
        return self._opened(super().Create_dist_graph_adjacent(*arguments, **named))

    def Free(self) -> None:
        self._end("Free")
        super().Free()

    def Disconnect(self) -> None:
        self._end("Disconnect")
        super().Disconnect()

    def _bare(self, op: str, root: int = UNKNOWN, how: int = UNKNOWN) -> None:
        self._channel.meet(OPS[op], self.deadline_s, root, UNKNOWN, UNKNOWN, how, depth=3)

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
        how = UNKNOWN if op_ is None else reduction(op_)
        self._channel.meet(OPS[op], self.deadline_s, root, count, kind, how, depth=4)

    def _pieces(self, sendobj: Any) -> list[bytes]:
        pieces = [dumps(piece) for piece in sendobj]
        if len(pieces) != self.size:
            raise ValueError(f"expected {self.size} objects, one for each rank, got {len(pieces)}")
        return pieces

    def _opened(self, new: Any) -> Any:
        """Watch a new communicator; its ranks call this together."""
        channel = self._channel
        if isinstance(channel, NoChannel) or new == MPI.COMM_NULL:
            return new
        kind = next((watched for plain, watched in KINDS.items() if isinstance(new, plain)), WatchingComm)
        if not isinstance(new, kind):
            new = kind(new)
        new.deadline_s = self.deadline_s
        row = MPI.Intracomm.bcast(new, channel.watch.new_row() if new.rank == 0 else None)
        if row < 0:
            if new.rank == 0:
                warnings.warn(
                    "too many communicators: this one is not watched; Free() those not needed", stacklevel=3
                )
            new._channel = NoChannel()
            return new
        ranks = MPI.Group.Translate_ranks(new.group, list(range(new.size)), MPI.COMM_WORLD.group)
        new._channel = Channel(channel.watch, row, new.rank, [int(rank) for rank in ranks])
        return new

    def _end(self, op: str) -> None:
        channel = self._channel
        self._channel.meet(OPS[op], self.deadline_s, -1, -1, -1, -1, depth=3)
        if isinstance(channel, Channel):
            super().Barrier()  # nobody looks at the row any more when it is given to another communicator
            channel.close()


class WatchingComm(WatchingCollectives, MPI.Intracomm):
    """An `Intracomm` whose ranks learn why they wait."""


class WatchingCart(WatchingCollectives, MPI.Cartcomm):
    """A `Cartcomm`, watched; its collectives among neighbours are not."""

    def Sub(self, remain_dims: Any) -> Any:
        self._bare("Sub")
        return self._opened(super().Sub(remain_dims))


class WatchingGraph(WatchingCollectives, MPI.Graphcomm):
    """A `Graphcomm`, watched; its collectives among neighbours are not."""


class WatchingDistgraph(WatchingCollectives, MPI.Distgraphcomm):
    """A `Distgraphcomm`, watched; its collectives among neighbours are not."""


KINDS: dict[type, type] = {
    MPI.Cartcomm: WatchingCart,
    MPI.Graphcomm: WatchingGraph,
    MPI.Distgraphcomm: WatchingDistgraph,
}
_world: WatchingComm | None = None  # this process's


def watch(keep: bool = False) -> WatchingComm:
    """Return the world's communicator, watched; always the same object; the first call is collective.

    With `keep`, the board's files stay for other processes to read, and somebody else removes them. Ranks of
    more than one node share no memory: their communicator is not watched.
    """
    global _world  # noqa: PLW0603
    if _world is None:
        world = MPI.COMM_WORLD
        _world = WatchingComm(world)
        channel = _open_world(world, keep)
        if channel is not None:
            _world._channel = channel
    return _world


def resume() -> None:
    """Take part again after a HangError; each rank calls it, in any order. Cells do it by themselves."""
    if _world is not None and isinstance(_world._channel, Channel):
        _world._channel.watch.resume()


def _open_world(world: MPI.Intracomm, keep: bool) -> Channel | None:
    """Make a board, and return the world's row on it; None if the world has more than one node."""
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    several = node.size < world.size
    node.Free()
    if world.allreduce(several, MPI.LOR):
        return None
    path, fault = "", None
    if world.rank == 0:
        try:
            path = Board.create(world.size)
        except OSError as error:
            fault = str(error)
    raise_together(world, fault)
    watch_ = Watch(Board(world.bcast(path)), world.rank, lambda: MPI.COMM_SELF.Iprobe(0, 0))
    if world.rank == 0:
        watch_.new_row()  # before anybody writes into it
    world.Barrier()
    if world.rank == 0 and not keep:
        watch_.board.remove()  # its memory stays for as long as a rank has it
    watch_.slot.state = RUNS
    return Channel(watch_, 0, world.rank, list(range(world.size)))
