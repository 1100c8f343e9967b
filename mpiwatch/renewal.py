"""Continue on fresh communicators after a cell that failed, so that no message of it reaches a later one.

MPI cannot take a message back. So each communicator gets a new handle, with a context of its own: what was
sent before on the old one matches nothing that is received from now on. The new handle is written into the
existing objects, so all names and attributes that refer to them stay valid.

All ranks take part, when each has ended the cell. They agree over a duplicate of the world that no cell can
use. Old handles are never freed: MPI could give their context to a new communicator while a message that
belongs to it is still on its way.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, sleep
from typing import Any, NamedTuple

from mpi4py import MPI

from mpiwatch import requests
from mpiwatch.collectives import Channel
from mpiwatch.recorder import ROWS_PER_RANK, CellState
from mpiwatch.waiting import NAP_S, Watch
from mpiwatch.wrapper import CommWrapper

DRAIN_S = 2.0  # for the messages of a failed cell to arrive, at the end of the program
SETTLE_S = 1.0  # the same between two cells
QUIET_ROUNDS = 3  # without a message, before it is likely that none is on its way

Key = tuple[int, str]  # the row of a watched communicator, or the name of one that is not


class Kept(NamedTuple):
    """A communicator of this rank. Its members, and those of the other side, are ranks of the world."""

    comm: MPI.Comm
    members: tuple[int, ...]
    others: tuple[int, ...]  # only of an intercommunicator
    channel: Channel | None
    companions: dict[int, tuple[MPI.Intracomm, Callable[[], object]]]


_private: Any = None  # the duplicate of the world
is_due = False  # whether a cell has failed on this rank since `renew`
_retired: list[Any] = []  # communicators that have been replaced, with their old handles


def prepare(world: MPI.Intracomm) -> None:
    """Make the duplicate over which the ranks will agree. The first call is collective."""
    global _private  # noqa: PLW0603
    if _private is None:
        _private = MPI.Intracomm.Dup(MPI.Intracomm(world))


def is_due_on_any_rank() -> bool:
    """Return whether a cell has failed on any rank since the communicators were renewed. Collective."""
    return bool(_private.allreduce(is_due, MPI.LOR))


def renew(world: MPI.Intracomm, names: dict[str, Any]) -> None:
    """Give each communicator a fresh handle, and deal with what was left on the old one. Collective.

    `names`: those of the session. A communicator that is not watched, such as an intercommunicator, is
    renewed if the same name refers to it on all of its ranks. One that not all of its ranks have, because its
    cell failed while it was made, becomes `COMM_NULL`.
    """
    global is_due  # noqa: PLW0603
    with _without_interrupts():
        objects = _objects(names)
        mine = dict(sorted(_kept(world, names, objects).items()))
        claims = {key: _claim(kept, objects) for key, kept in mine.items()}
        everyone: list[dict[Key, Any]] = _private.allgather(claims)
        requests.leave_behind()
        for key, kept in mine.items():
            if not _is_agreed(claims[key], key, everyone):
                if kept.channel is not None:
                    for each in objects.get(_handle(kept.comm), ()):
                        each._channel = None
                    _replace(kept.comm, MPI.COMM_NULL, objects)
                    kept.channel.watch.channels.remove(kept.channel)
            elif not any(everyone[rank][key].is_used for rank in kept.members):
                _retired.append(_copy(kept.comm))
                assert kept.channel is not None
                kept.channel.close()
            else:
                new = _fresh(kept)
                _replace(kept.comm, new, objects)
                shared = set(kept.companions).intersection(
                    *(everyone[rank][key].companions for rank in kept.members)
                )
                for own, reset in (kept.companions[number] for number in sorted(shared)):
                    _replace(own, MPI.Intracomm.Dup(new), {})
                    reset()
        if (watch := getattr(world, "watch", None)) is not None:
            _count_on(watch)
        _settle()
        is_due = False


class _Claim(NamedTuple):
    """What a rank says about a communicator; `is_used`: whether an object of its session refers to it."""

    members: tuple[int, ...]
    others: tuple[int, ...]
    companions: tuple[int, ...]
    is_used: bool


def _claim(kept: Kept, objects: dict[bytes, list[Any]]) -> _Claim:
    is_used = bool(objects.get(_handle(kept.comm)))
    return _Claim(kept.members, kept.others, tuple(kept.companions), is_used)


def _is_agreed(claim: _Claim, key: Key, everyone: list[dict[Key, Any]]) -> bool:
    """Return whether all ranks of a communicator claim the same about it."""
    own, other = claim[:2], (claim.others, claim.members)
    return all(
        (theirs := everyone[rank].get(key)) is not None and theirs[:2] == expected
        for ranks, expected in ((claim.members, own), (claim.others, other))
        for rank in ranks
    )


def _objects(names: dict[str, Any]) -> dict[bytes, list[Any]]:
    """Return all communicators of this process as Python objects, by their handles."""
    found: dict[int, Any] = {}
    # `isinstance` would run code of objects that pretend to be of another class. mpi4py's own communicators
    # are no containers, so the garbage collector does not list them.
    for each in (*gc.get_objects(), *names.values()):
        if issubclass(type(each), MPI.Comm):
            found[id(each)] = each
    objects: dict[bytes, list[Any]] = {}
    for each in found.values():
        objects.setdefault(_handle(each), []).append(each)
    return objects


def _kept(world: MPI.Intracomm, names: dict[str, Any], objects: dict[bytes, list[Any]]) -> dict[Key, Kept]:
    """Return the communicators to renew: those that are watched, and others to which a name refers."""
    watch = getattr(world, "watch", None)
    channels = watch.channels if watch is not None else []
    kept = {
        (each.row, ""): Kept(each.comm, tuple(each.members), (), each, each.live_companions())
        for each in channels
    }
    if not channels:
        kept[0, ""] = Kept(_copy(world), tuple(range(world.size)), (), None, {})
    known = {_handle(each.comm) for each in kept.values()}
    known |= {_handle(each) for each in (MPI.COMM_NULL, MPI.COMM_SELF, _private)}
    for name, each in sorted(names.items()):
        if issubclass(type(each), MPI.Comm) and (handle := _handle(each)) not in known:
            known.add(handle)
            others = _world_ranks(each.Get_remote_group()) if each.Is_inter() else ()
            members = _world_ranks(each.Get_group())
            kept[_private.size * ROWS_PER_RANK, name] = Kept(_copy(each), members, others, None, {})
    return kept


def _world_ranks(group: MPI.Group) -> tuple[int, ...]:
    world = _private.Get_group()
    ranks = MPI.Group.Translate_ranks(group, None, world)
    world.Free()
    return tuple(int(rank) for rank in ranks)


def _fresh(kept: Kept) -> Any:
    """Return a communicator like the given one, made without a message on it. Its ranks call this."""
    old: Any = kept.comm
    if kept.members == tuple(range(_private.size)):
        new = _private.Dup()
    else:
        world = _private.Get_group()
        group = world.Incl(kept.members)
        new = _private.Create_group(group)
        group.Free()
        world.Free()
    plain = new
    topology = old.Get_topology()
    if kept.others:
        new = plain.Create_intercomm(0, _private, kept.others[0])
    elif topology == MPI.CART:
        dims, periods, _ = MPI.Cartcomm(old).Get_topo()
        new = plain.Create_cart(dims, periods, reorder=False)
    elif topology == MPI.GRAPH:
        index, edges = MPI.Graphcomm(old).Get_topo()
        new = plain.Create_graph(index, edges, reorder=False)
    elif topology == MPI.DIST_GRAPH:
        sources, destinations, weights = MPI.Distgraphcomm(old).Get_dist_neighbors()
        given = (MPI.UNWEIGHTED, MPI.UNWEIGHTED) if weights is None else weights
        new = plain.Create_dist_graph_adjacent(sources, destinations, *given, reorder=False)
    if new is not plain:
        plain.Free()
    handler = old.Get_errhandler()
    new.Set_errhandler(handler)
    handler.Free()
    new.Set_name(old.Get_name())
    return new


def _replace(old: Any, new: Any, objects: dict[bytes, list[Any]]) -> None:
    """Write a new handle into all objects that have the old one."""
    _retired.append(_copy(old))
    for each in (*objects.pop(_handle(old), ()), old):
        ctypes.memmove(MPI._addressof(each), MPI._addressof(new), MPI._sizeof(new))
        if isinstance(each, CommWrapper):
            each._renewed()


def _handle(comm: MPI.Comm) -> bytes:
    return ctypes.string_at(MPI._addressof(comm), MPI._sizeof(comm))


def _copy(comm: MPI.Comm) -> Any:
    """Return another object of the MPI library's with the same handle."""
    return (MPI.Intercomm if comm.Is_inter() else MPI.Intracomm)(comm)


def _count_on(watch: Watch) -> None:
    """Let all ranks number their next collective alike: the cell may have ended at different ones."""
    numbers = [watch.recorder.head.first_number, *(channel.number for channel in watch.channels)]
    number = _private.allreduce(max(numbers), MPI.MAX)
    watch.join_epoch()
    for channel in watch.channels:
        channel.number = number


def _settle() -> None:
    """Receive what was sent on old handles, so that sends complete and their buffers can go. Collective."""
    deadline, quiet = monotonic() + SETTLE_S, 0
    while quiet < QUIET_ROUNDS:
        is_busy = _receive_and_discard(_retired) or requests.has_unfinished()
        votes = _private.allgather((is_busy, monotonic() > deadline))
        quiet = 0 if any(busy for busy, _ in votes) else quiet + 1
        if votes[0][1]:
            break
    requests.cancel_lost()


def _receive_and_discard(comms: Sequence[Any]) -> bool:
    """Receive and discard the messages that have arrived; return whether there were any."""
    status, found = MPI.Status(), False
    for comm in comms:
        while (message := MPI.Comm.Improbe(comm, MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])
            found = True
    return found


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore an interrupt that was meant for the cell and comes late."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def drain(watch: Watch) -> None:
    """Receive and discard, before MPI ends, what failed cells and hangs have left.

    MPICH aborts in MPI_Finalize if a large message was never received, and cannot cancel one. So each rank
    discards messages until all ranks are here and its own sends are done, for at most DRAIN_S.
    """
    # If no rank has seen a hang, and no cell has failed, what is left is the program's own affair.
    if MPI.Is_finalized() or not (watch.recorder.head.epoch or _retired):
        return
    watch.end_cell(CellState.RETURNED, "")
    deadline = monotonic() + DRAIN_S
    is_last_round = False
    while monotonic() < deadline:
        _receive_and_discard([*_retired, *(channel.comm for channel in watch.channels)])
        has_unfinished = requests.has_unfinished()
        if is_last_round:
            return
        all_here = all(slot.cell_state != CellState.RUNNING for slot in watch.recorder.slots)
        is_last_round = all_here and not has_unfinished
        sleep(NAP_S)
