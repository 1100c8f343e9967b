"""A communicator that does not freeze: a collective that a rank never joins is an error, with the reason.

Before each blocking collective its ranks meet on the board (see board.py): each notes what it is about to
call and waits, in Python, until all others have come to the same. Only then MPI's own collective is called,
which can no longer hang, and no data moves in one whose calls differ. The price: every collective
synchronises, as MPI allows it to. Blocking messages are their non-blocking twins, asked again and again.

It is MPI's own communicator otherwise: a class derived from mpi4py's, around the same handle.
"""

from __future__ import annotations

import os
import socket
import warnings
from pathlib import Path
from typing import Any

from mpi4py import MPI

from labkit.comm.errors import raise_together
from labkit.watch.arrays import WatchedArrays
from labkit.watch.flight_recorder.layout import CellState, FlightRecorder
from labkit.watch.flight_recorder.opcodes import OPERATIONS
from labkit.watch.messages import WatchedMessages
from labkit.watch.objects import WatchedObjects
from labkit.watch.rendezvous import Channel, NoChannel
from labkit.watch.wait import Watch


class WatchingCollectives(WatchedArrays, WatchedObjects, WatchedMessages):
    """A communicator whose ranks learn why they wait, and what is made from it."""

    @property
    def watch(self) -> Watch | None:
        """What watches: one for all communicators of a process."""
        return self._channel.watch if isinstance(self._channel, Channel) else None

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
        self._channel.meet(OPERATIONS[op], self.deadline_s, -1, -1, -1, -1, depth=3)
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
    more than one machine see no common memory: their communicator is not watched.
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
    """Make a board, and return the world's row on it; None if the ranks do not all see it."""
    if len(set(world.allgather(_machine()))) > 1:
        return None
    path, fault = "", None
    if world.rank == 0:
        try:
            path = FlightRecorder.create(world.size)
        except OSError as error:
            fault = str(error)
    raise_together(world, fault)
    path = world.bcast(path)
    # Containers of one machine have files of their own.
    if not world.allreduce(os.path.exists(path), MPI.LAND):
        if world.rank == 0:
            FlightRecorder(path).remove()
        return None
    watch_ = Watch(FlightRecorder(path), world.rank, lambda: MPI.COMM_SELF.Iprobe(0, 0))
    if world.rank == 0:
        watch_.new_row()  # before anybody writes into it
    world.Barrier()
    if world.rank == 0 and not keep:
        watch_.recorder.remove()  # its memory stays for as long as a rank has it
    watch_.slot.cell_state = CellState.RUNNING
    return Channel(watch_, 0, world.rank, list(range(world.size)))


def _machine() -> tuple[str, str]:
    """Return what processes have in common that can see each other and the same memory.

    Not the host's name: hosts made on one machine have several (see labkit.hosts).
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        return socket.gethostname(), ""
