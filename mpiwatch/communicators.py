"""Watched communicators: if a rank never joins a collective, the others raise an error instead of hanging.

Before each blocking collective, its ranks make a rendezvous in shared memory (see rendezvous.py): each notes
what it is about to call and waits, in Python, until all others have made the same call. Only then do they
call the MPI library's own collective. It can no longer hang, and no data moves if the calls differ. The cost
is that every collective synchronises, which MPI permits. Blocking messages use their non-blocking
counterparts, which are polled.

In all other respects, a watched communicator is mpi4py's own, with the same handle.
"""

from __future__ import annotations

import atexit
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

import mpiwatch
from mpiwatch import waiting
from mpiwatch.arrays import WatchedArrays
from mpiwatch.comparing import new_channel
from mpiwatch.flight_recorder.layout import CellState
from mpiwatch.flight_recorder.opcodes import OPERATIONS, UNKNOWN
from mpiwatch.machines.hub import Hub
from mpiwatch.machines.opening import open_recorder
from mpiwatch.machines.serving import Server, serve_here
from mpiwatch.message_wait import MessageWait
from mpiwatch.messages import WatchedMessages
from mpiwatch.objects import WatchedObjects
from mpiwatch.rendezvous import Channel, NoChannel
from mpiwatch.renewal import drain
from mpiwatch.requests.noted import NotedRequests
from mpiwatch.requests.polled import replace_requests
from mpiwatch.requests.waits import set_default
from mpiwatch.signature import signature
from mpiwatch.wait import Watch
from mpiwatch.watchdog.watchdog import OnDeadlock, Watchdog, end_process
from mpiwatch.windows import CheckedWin

PATIENCE = 5.0  # how many deadlines engines wait for a rank that computes


class WatchedComm(WatchedArrays, WatchedObjects, NotedRequests, WatchedMessages):
    """A communicator that reports why its ranks wait; so do all communicators made from it.

    `watch()` makes the first one; a WatchedComm without a watched parent is not watched either. Neighbourhood
    collectives and communicators made by Idup are not watched.

    `deadline_s`: how long a rank waits for the others before it reports a hang, in seconds.
    """

    @property
    def watch(self) -> Watch | None:
        """Return the part of this process in the flight recorder; None if the communicator is not watched."""
        return self._channel.watch if isinstance(self._channel, Channel) else None

    def __reduce__(self) -> Any:
        """Pickle `MPI.COMM_WORLD` by its name, as mpi4py does; the others cannot be pickled."""
        return "COMM_WORLD" if self is MPI.COMM_WORLD else super().__reduce__()

    def Abort(self, errorcode: int = 0) -> NoReturn:
        if self.watch is not None:
            self.watch.end_program()  # Abort is deliberate and needs no report
        super().Abort(errorcode)

    def Free(self) -> None:
        self._close("Free")
        super().Free()

    def Disconnect(self) -> None:
        self._close("Disconnect")
        super().Disconnect()

    def _before_derivation(self, method: str) -> None:
        super()._before_derivation(method)
        self._join(method, depth=4)

    def _before_schedule(self, name: str, array: np.ndarray | None) -> None:
        super()._before_schedule(name, array)
        count, dtype = (UNKNOWN, UNKNOWN) if array is None else signature(array)
        depth, frame = 2, sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__", "").startswith(tuple(mpiwatch.wrappers)):
            depth, frame = depth + 1, frame.f_back
        self._channel.rendezvous(name, self.deadline_s, UNKNOWN, count, dtype, UNKNOWN, depth - 1)

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        new.deadline_s = self.deadline_s
        channel = self._channel
        if isinstance(channel, NoChannel) or not is_ready:
            return
        row = np.array([channel.watch.new_row() if new.rank == 0 else -1])
        MPI.Intracomm.Bcast(new, row)
        if row[0] < 0:
            if new.rank == 0:
                warnings.warn(
                    "This communicator is not watched: too many are open. Free() those no longer needed.",
                    stacklevel=5,
                )
            return
        new._channel = new_channel(channel.watch, int(row[0]), new, _world_ranks(new))

    def _close(self, name: str) -> None:
        channel = self._channel
        self._join(name)
        if isinstance(channel, Channel):
            super().Barrier()  # when the row is given to another communicator, no rank reads it any more
            channel.close()


Serve = Callable[[Server, Callable[[], object]], None]

_world: WatchedComm | None = None  # this process's


def watch(keep: bool = False, serve: Serve = serve_here, *, only_compares: bool = False) -> WatchedComm:
    """Return the world's communicator, watched; always the same object. The first call is collective.

    From then on, ranks that wait for a message of a schedule on a communicator that is not watched end with a
    hang report, too.

    With `only_compares`, ranks compare their collectives but do not wait for each other before a collective.
    With `keep`, the flight recorder's files stay for other processes to read, and the caller's launcher
    removes them. Ranks of several machines share no memory: `serve` starts the thread that connects a machine
    with the others (see mpiwatch.machines).
    """
    global _world  # noqa: PLW0603
    if _world is None:
        world = MPI.COMM_WORLD
        made: WatchedComm = WatchedComm(world)
        made.__module__ = "mpi4py.MPI"  # where pickle looks for its name
        channel = _open_world(world, keep, serve, only_compares)
        if channel is not None:
            made._channel = channel
            atexit.register(drain, channel.watch)
            waiting.on_wait, waiting.attempt = _Waiter(made, channel.watch), lambda: channel.watch.epoch
        _world = made
    return _world


_watchdog: Watchdog | None = None


def watch_world(
    *,
    deadline_s: float,
    keep: bool = False,
    in_program: bool = False,
    strict: bool = False,
    on_deadlock: OnDeadlock = end_process,
    serve: Serve = serve_here,
) -> WatchedComm:
    """Replace `MPI.COMM_WORLD` by the watched communicator and start the watchdog; return the communicator.

    The first call is collective; later ones set the deadline.

    - `deadline_s`: how long ranks wait before they report a hang, in seconds.
    - `keep`: leave the flight recorder's files for other processes to read (see `watch`).
    - `in_program`: wait without limit, rather than PATIENCE deadlines, for a rank that computes; and do not
      end ranks that stay in MPI after a report about a watched wait.
    - `strict`: let collectives begin only when all ranks have called the same one, also in a program.
    - `on_deadlock`: a function that must end the process. The watchdog's thread calls it with the report and
      this rank's number if this rank stays inside an MPI call after a report.
    - `serve`: see `watch`.
    """
    global _watchdog  # noqa: PLW0603
    world = watch(keep, serve, only_compares=in_program and not strict)
    world.deadline_s = deadline_s
    set_default(world.watch, deadline_s)
    setattr(MPI, "COMM_WORLD", world)  # noqa: B010  (mpi4py's stubs declare it final)
    if world.watch is not None and _watchdog is None:
        replace_requests(world.watch, deadline_s)
        setattr(MPI, "Win", CheckedWin)  # noqa: B010
        world.watch.patience = math.inf if in_program else PATIENCE
        _watchdog = Watchdog(world.watch, lambda: watch().deadline_s, on_deadlock, in_program)
        if isinstance(world.watch.server, Hub):
            world.watch.server.deadline_s = lambda: watch().deadline_s
        _watchdog.start()
        atexit.register(_watchdog.stop)
    return world


def replace_world(world: WatchedComm) -> None:
    """Make `watch()` and `MPI.COMM_WORLD` refer to a communicator that wraps the world's."""
    global _world  # noqa: PLW0603
    _world = world
    setattr(MPI, "COMM_WORLD", world)  # noqa: B010


def resume() -> None:
    """Take part again after a HangError; each rank calls it, in any order. Cells do it by themselves."""
    if _world is not None and _world.watch is not None:
        _world.watch.resume()


class _Waiter:
    """Waits for the messages of schedules on communicators that are not watched (see mpiwatch.waiting)."""

    def __init__(self, world: WatchedComm, watch_: Watch) -> None:
        self.world, self.watch = world, watch_

    def __call__(self, is_done: Callable[[], bool], pending: Callable[[], waiting.Pending]) -> None:
        missing = pending()
        members = _world_ranks(missing.comm)
        peers = [members[rank] for rank in (*missing.receives, *missing.sends)]
        operation = OPERATIONS["Recv" if missing.receives or not peers else "Send"]
        peer = peers[0] if peers else -1
        frame = sys._getframe(1)
        wait = MessageWait(
            self.watch,
            members,
            self.world.deadline_s,
            operation,
            peer,
            -1,
            frame,
            purpose=missing.operation,
        )
        self.watch.wait(is_done, wait)


def _world_ranks(comm: MPI.Intracomm) -> list[int]:
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = MPI.Group.Translate_ranks(group, None, world)
    group.Free()
    world.Free()
    return [int(rank) for rank in ranks]


def _open_world(world: MPI.Intracomm, keep: bool, serve: Serve, only_compares: bool) -> Channel | None:
    """Create flight recorders, and return the world's row in them; None if the ranks cannot be watched."""

    def progress() -> object:
        return MPI.Is_finalized() or MPI.COMM_SELF.Iprobe(0, 0)

    opened = open_recorder(world, keep)
    if opened is None:
        return None
    recorder, machines, server = opened
    if server is not None:
        serve(server, progress)
    watch_ = Watch(recorder, world.rank, progress, machines)
    watch_.server = server
    if world.rank == 0:
        watch_.new_row()  # before any rank writes into it
    world.Barrier()
    watch_.slot.cell_state = CellState.RUNNING
    watch_.slot.only_compares = only_compares
    return new_channel(watch_, 0, world, list(range(world.size)))
