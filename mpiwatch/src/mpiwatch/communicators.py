"""Watched communicators: if a rank never joins a collective, the others raise an error instead of hanging.

Collectives begin with a rendezvous (see collectives.py). Blocking messages use their non-blocking
counterparts, which are polled (see messages.py). In all other respects, a watched communicator is mpi4py's
own, with the same handle.

After a cell that failed, the world's communicator goes on with a fresh handle (see renewal.py).
"""

from __future__ import annotations

import atexit
import math
import os
import socket
import sys
import warnings
from collections.abc import Callable
from os import _exit  # by its name here: engines note calls of `os._exit`
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from mpiwatch import modes, waiting
from mpiwatch.arguments import check_message, signature
from mpiwatch.collectives import Channel, WatchedCollectives
from mpiwatch.forwarding import add_methods
from mpiwatch.launch import node_name
from mpiwatch.library_calls import NotedWin, RawIntracomm, RawWin, install, like
from mpiwatch.machines import START_S, Hub, Listener, Server, addresses, find_hub, serve_here, server_of
from mpiwatch.messages import WatchedMessages
from mpiwatch.recorder import HOST_BYTES, CellState, FlightRecorder, fit
from mpiwatch.rendezvous import meet
from mpiwatch.renewal import renewal
from mpiwatch.report import UNKNOWN
from mpiwatch.requests import replace_requests
from mpiwatch.waiting import Watch, raise_together, world_ranks
from mpiwatch.watchdog import Watchdog

# The accesses of a window whose buffers are checked.
ACCESSES = (
    *("Put", "Get", "Accumulate", "Rput", "Rget", "Raccumulate"),
    *("Get_accumulate", "Rget_accumulate", "Fetch_and_op", "Compare_and_swap"),
)

# If set to 1, hosts that network namespaces make on one machine share no flight recorder, like real ones.
SEPARATE = "MPIWATCH_SEPARATE_MACHINES"
POLL_S = 0.01
ABORT_S = 5.0  # for the launcher to end this process after MPI_Abort
PATIENCE = 5.0  # how many deadlines engines wait for a rank that computes


class CheckedWin(NotedWin):
    """An `MPI.Win` whose accesses raise an error before MPI reads or writes beyond an origin's array."""

    def _access(self, name: str, kwargs: dict[str, Any]) -> Any:
        check_access(name, kwargs)
        return getattr(NotedWin, name)(self, **kwargs)


def check_access(call: str, kwargs: dict[str, Any]) -> None:
    """Raise ValueError if a buffer of an access, on the rank that makes it, is given more than it holds."""
    for name in (key for key in ("origin", "compare", "result") if key in kwargs):
        check_message(MPI.COMM_WORLD, call, kwargs[name], kwargs["target_rank"])


add_methods(CheckedWin, ACCESSES, "_access", RawWin, by_name=True)
like(CheckedWin, RawWin)


def open_recorder(world: MPI.Intracomm, keep: bool) -> tuple[FlightRecorder, list[int], Server | None] | None:
    """Create a flight recorder on each machine, and connect the machines. Collective.

    Return this rank's recorder, the machine of each rank, and on the first rank of each of several machines,
    the thread to start. Return None if not all ranks of a machine see its recorder, or if a machine cannot
    reach rank 0's. With `keep`, the files stay.
    """
    names, hosts = zip(*world.allgather((machine(), node_name(socket.gethostname()))), strict=True)
    machines = [list(dict.fromkeys(names)).index(name) for name in names]
    are_several = len(set(machines)) > 1
    first = machines.index(machines[world.rank])
    path, fault = "", None
    if world.rank == first:
        try:
            path = FlightRecorder.create(world.size)
        except OSError as error:
            fault = str(error)
    raise_together(world, fault)
    path = world.allgather(path)[first]
    # Each container on a machine has its own files.
    is_watched = world.allreduce(os.path.exists(path), MPI.LAND)
    server = None
    if is_watched:
        recorder = FlightRecorder(path)
        if world.rank == first:
            recorder.head.machine, recorder.head.hub = machines[first], are_several
            for slot, number, host in zip(recorder.slots, machines, hosts, strict=True):
                slot.machine, slot.host = number, fit(host, HOST_BYTES) if are_several else b""
        server = connect(world, recorder, machines) if are_several else None
        is_watched = world.bcast(server is not None or not are_several)
        world.Barrier()
    if world.rank == first and not (keep and is_watched):
        FlightRecorder(path).remove()  # the memory exists as long as a rank uses it
    if server is not None and not is_watched:
        server.close()
    return (recorder, machines, server) if is_watched else None


def connect(world: MPI.Intracomm, recorder: FlightRecorder, machines: list[int]) -> Server | None:
    """Return the thread that connects this machine with the others, on its first rank. Collective.

    On rank 0, return None if a machine cannot be connected.
    """
    listener = Listener() if world.rank == 0 else None
    where = None
    if listener is not None:
        where = [listener.address] if listener.address else addresses(), listener.port, listener.key
    where = world.bcast(where)
    mine = machines[world.rank]
    connection, fault = None, ""
    if mine and machines.index(mine) == world.rank:
        connection, fault = find_hub(where, mine)
    faults = world.allgather(fault)
    if listener is None:
        return server_of(recorder, {0: connection}) if connection else None
    fault = next((f"rank {rank} cannot reach rank 0 ({why})" for rank, why in enumerate(faults) if why), "")
    deadline = monotonic() + START_S
    while not fault and set(machines) - {0, *listener.admitted}:
        sleep(POLL_S)
        fault = "a machine has not connected" if monotonic() > deadline else ""
    listener.close()
    if not fault:
        return server_of(recorder, dict(listener.admitted))
    for connection in listener.admitted.values():
        connection.close()
    warnings.warn(f"The ranks are not watched: {fault}.", stacklevel=2)
    return None


def machine() -> tuple[str, ...]:
    """Return a name that is equal for processes that see each other and share memory.

    The name of the host will not do: the hosts that network namespaces make on one machine have a name each.
    """
    try:
        apart = []
        if os.environ.get(SEPARATE, "") == "1":
            # The nodes of a SLURM made for tests are on one machine and share its network.
            apart = [os.readlink("/proc/self/ns/net"), os.environ.get("SLURMD_NODENAME", "")]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return boot, os.readlink("/proc/self/ns/pid"), *apart
    except OSError:  # not Linux
        return (socket.gethostname(),)


class WatchedComm(WatchedCollectives, WatchedMessages):
    """A communicator that reports why its ranks wait; so do all communicators made from it.

    `watch()` makes the first one; a WatchedComm without a watched parent is not watched either. Neighbourhood
    collectives and communicators made by Idup are not watched.

    `deadline_s`: how long a rank waits for the others before it reports a hang, in seconds.
    """

    @property
    def watch(self) -> Watch | None:
        """Return the part of this process in the flight recorder; None if the communicator is not watched."""
        return None if self._channel is None else self._channel.watch

    def __reduce__(self) -> Any:
        """Pickle `MPI.COMM_WORLD` by its name, as mpi4py does; the others cannot be pickled."""
        return "COMM_WORLD" if self is MPI.COMM_WORLD else super().__reduce__()

    def Abort(self, errorcode: int = 0) -> NoReturn:
        if self.watch is not None:
            self.watch.note_last_words(f"called comm.Abort({errorcode})", sys._getframe(1))
            self.watch.end_program()  # Abort is deliberate and needs no report
        super().Abort(errorcode)
        # MPICH's may return before its launcher has ended the ranks: nothing below this call may run.
        sleep(ABORT_S)
        _exit(errorcode % 256 or 1)

    def _before_derivation(self, method: str) -> None:
        super()._before_derivation(method)
        self._begin(method)

    def _derive(self, name: str, *arguments: Any) -> Any:
        group: Any = arguments[0] if arguments else None
        if name == "Create_group" and self._can_meet and group.rank != MPI.UNDEFINED:
            world = MPI.COMM_WORLD.Get_group()
            members = MPI.Group.Translate_ranks(group, None, world)
            world.Free()
            meet(renewal.for_rendezvous, members, name)
        return super()._derive(name, *arguments)

    def Create_intercomm(
        self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int, tag: int = 0
    ) -> MPI.Intercomm:
        name = "Create_intercomm"
        self._begin(name, local_leader)
        if self._can_meet and self.rank == local_leader and 0 <= remote_leader < peer_comm.size:
            peers = world_ranks(peer_comm.Get_group())
            meet(renewal.for_rendezvous, [peers[peer_comm.rank], peers[remote_leader]], name)
        self._begin(name, local_leader)  # the leaders have met
        return super().Create_intercomm(local_leader, peer_comm, remote_leader, tag)

    @property
    def _can_meet(self) -> bool:
        """Whether ranks can meet before a call that only some make: in a notebook, not in a program."""
        return self.watch is not None and renewal.for_rendezvous is not None

    def _before_schedule(self, name: str, array: np.ndarray | None) -> None:
        super()._before_schedule(name, array)
        count, dtype = (UNKNOWN, UNKNOWN) if array is None else signature(array)
        if self._channel is not None:
            self._channel.begin_collective(name, self.deadline_s, count=count, dtype=dtype)

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        new.deadline_s = self.deadline_s
        channel = self._channel
        if channel is None or not is_ready:
            return
        place = np.array(channel.watch.new_row(new.size) if new.rank == 0 else (-1, -1, -1))
        RawIntracomm.Bcast(new, place)
        row, first, number = place.tolist()
        if row < 0:
            if new.rank == 0:
                warnings.warn(
                    "This communicator is not watched: too many are open. Free() those no longer needed.",
                    stacklevel=5,
                )
            return
        members = waiting.world_ranks(new.Get_group())
        new._channel = Channel(channel.watch, row, first, number, new, members, new.made_by)
        RawIntracomm.Barrier(new)  # all words are 0

    def _end(self, name: str) -> None:
        self._begin(name)
        if self._channel is not None:
            super().Barrier()  # when the row is given to another communicator, no rank reads it any more
            self._channel.close()
        getattr(super(), name)()


add_methods(WatchedComm, ("Free", "Disconnect"), "_end")


Serve = Callable[[Server, Callable[[], object]], None]

_world: WatchedComm | None = None  # this process's


def watch(keep: bool = False, serve: Serve = serve_here, *, waits: bool = True) -> WatchedComm:
    """Return the world's communicator, watched; always the same object. The first call is collective.

    From then on, ranks that wait for a message of a schedule on a communicator that is not watched end with a
    hang report, too.

    Unless it `waits`, ranks compare their collectives but do not wait for each other before a collective.
    With `keep`, the flight recorder's files stay for other processes to read, and the caller's launcher
    removes them. Ranks of several machines share no memory: `serve` starts the thread that connects a machine
    with the others (see mpiwatch.machines).
    """
    global _world  # noqa: PLW0603
    if _world is not None:
        return _world
    world = MPI.COMM_WORLD
    watched_world: WatchedComm = WatchedComm(world)
    watched_world.__module__ = "mpi4py.MPI"  # where pickle looks for its name
    opened = open_recorder(world, keep)
    _world = watched_world
    if opened is None:
        return watched_world

    def progress() -> object:  # with MPICH, a probe on COMM_SELF makes none
        return MPI.Is_finalized() or world.Iprobe(world.rank, 0)

    recorder, machines, server = opened
    if server is not None:
        serve(server, progress)
    waiting.watched = rank_watch = Watch(recorder, world.rank, progress, machines)
    rank_watch.server, rank_watch.waits, rank_watch.deadline_s = server, waits, lambda: watch().deadline_s
    if world.rank == 0:
        rank_watch.new_row(world.size)  # before any rank writes into it
    world.Barrier()
    rank_watch.slot.cell_state = CellState.RUNNING
    number, members = recorder.head.first_number, list(range(world.size))
    watched_world._channel = Channel(rank_watch, 0, 0, number, world, members)
    atexit.register(renewal.drain, rank_watch)
    return watched_world


_watchdog: Watchdog | None = None


def watch_world(
    *,
    deadline_s: float,
    keep: bool = False,
    in_program: bool = False,
    has_rendezvous: bool = False,
    serve: Serve = serve_here,
) -> WatchedComm:
    """Replace `MPI.COMM_WORLD` by the watched communicator and start the watchdog; return the communicator.

    The first call is collective; later ones set the deadline.

    - `deadline_s`: how long ranks wait before they report a hang, in seconds.
    - `keep`: leave the flight recorder's files for other processes to read (see `watch`).
    - `in_program`: wait without limit, rather than PATIENCE deadlines, for a rank that computes; and do not
      end ranks that stay in MPI after a report about a watched wait.
    - `has_rendezvous`: let collectives begin only when all ranks have called the same one, also in a program.
    - `serve`: see `watch`.
    """
    global _watchdog  # noqa: PLW0603
    world = watch(keep, serve, waits=has_rendezvous or not in_program)
    world.deadline_s = deadline_s
    setattr(MPI, "COMM_WORLD", world)  # noqa: B010  (mpi4py's stubs declare it final)
    if world.watch is not None and _watchdog is None:
        install()
        replace_requests()
        setattr(MPI, "Win", CheckedWin)  # noqa: B010
        world.watch.patience = math.inf if in_program else PATIENCE
        _watchdog = Watchdog(world.watch, in_program)
        if isinstance(world.watch.server, Hub):
            world.watch.server.deadline_s = world.watch.deadline_s
        _watchdog.start()
        atexit.register(_watchdog.stop)
    return world


def register_mode(mode: modes.Mode) -> None:
    """Let a mode take part in all watched calls: see mpiwatch.modes.

    `watch()` and `MPI.COMM_WORLD` then refer to the mode's communicator, which wraps the watched world.
    """
    global _world
    watch: Watch = mode.world.watch
    move_messages = watch.progress

    def progress() -> None:
        move_messages()
        mode.progress()

    watch.progress = progress
    modes.registered, _world = mode, mode.world
    replace_requests(mode.request, mode.prequest)
    for name, replacement in {**mode.names, "COMM_WORLD": mode.world}.items():
        setattr(MPI, name, replacement)


def resume() -> None:
    """Take part again after a HangError; each rank calls it, in any order. Cells do it by themselves."""
    if _world is not None and _world.watch is not None:
        _world.watch.resume()
