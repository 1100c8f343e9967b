"""The windows of strict mode: it compares the accesses to their memory.

The accesses of a window are compared in the call that ends their epoch. MPI lets a Put or Get take place
at any time before its epoch ends, so strict mode issues all of them at the end. Therefore, the rank itself
has made every change in its window's memory between two fences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch import arguments
from mpiwatch.communicators import check_access
from mpiwatch.forwarding import add_methods
from mpiwatch.library_calls import NotedWin, RawWin, like
from mpiwatch.places import here
from mpiwatch.signatures import of_message
from mpiwatch.strict import freed, memory
from mpiwatch.strict.exchange import Exchange, clock
from mpiwatch.strict.findings import Category, StrictError, add
from mpiwatch.strict.memory import Parts, Region

STORE = "local store"  # a change of a window's memory by its own rank
WRITES = ("Put", "Accumulate", STORE)
ATOMIC = ("Accumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap")


@dataclass
class Access:
    """An access to `parts` of a rank's window. The ranks of the origin and the target are those of its group.

    `began`, `ended`: when the program made it and completed it, on the origin's clock.
    """

    operation: str
    target: int
    parts: Parts
    place: str
    origin: int
    epoch: str = "fence"  # or "exclusive" or "shared", for a lock, or "start"
    began: tuple[int, ...] = ()
    ended: int = 0

    def conflicts(self, other: Access) -> bool:
        """Return whether two accesses may touch the same bytes at once, and at least one of them writes."""
        writes = self.operation in WRITES or other.operation in WRITES
        both_atomic = self.operation in ATOMIC and other.operation in ATOMIC
        may_conflict = self.target == other.target and writes and not both_atomic
        return may_conflict and memory.overlap(self.parts, other.parts) and self._may_be_at_once(other)

    def _may_be_at_once(self, other: Access) -> bool:
        if self.epoch == other.epoch == "fence":
            return True
        if self.origin != other.origin and "exclusive" in (self.epoch, other.epoch):
            return False  # one after the other
        return not (self._is_before(other) or other._is_before(self))

    def _is_before(self, other: Access) -> bool:
        """Return whether its epoch ended before the other's began, and the other's origin knew it."""
        return bool(self.ended) and bool(other.began) and other.began[self.origin] >= self.ended


def report_conflicts(accesses: Sequence[Access]) -> None:
    """Report conflicting accesses to this rank's window."""
    for pair in combinations(accesses, 2):
        if pair[0].conflicts(pair[1]):
            one, other = sorted(pair, key=lambda access: (access.operation == STORE, access.origin))
            second = (
                f"rank {other.origin} itself changes it"
                if other.operation == STORE
                else f"{other.operation} of rank {other.origin} ({other.place})"
            )
            text = (
                f"{one.operation} of rank {one.origin} and {second} use the same memory of rank "
                f"{one.target}'s window in one epoch"
            )
            add(Category.GLOBAL_CONCURRENCY, text, one.place)


@dataclass(eq=False)
class OpenAccess:
    """An access whose epoch has not ended: the origin's memory, and the call that issues it."""

    access: Access
    region: Region
    issue: Callable[[], None]
    is_issued: bool = False


class StrictWin(NotedWin):
    """A window whose collective calls end with a report if a rank is missing.

    Windows that `_make` does not make, such as those of Create_dynamic, are mpi4py's own.
    """

    comm: Any  # of strict mode
    exchange: Exchange
    units: Sequence[int]
    sizes: Sequence[int]
    under_way: list[OpenAccess]
    accesses: list[Access]
    locks: dict[int, tuple[str, str]]  # kind, line; by rank, or -1 for all
    in_fence = in_start = False
    seen = b""

    def __new__(cls, win: NotedWin | None = None) -> Any:
        return NotedWin.__new__(NotedWin, *(() if win is None else (win,)))

    @classmethod
    def _make(cls, name: str, kwargs: dict[str, Any]) -> Any:
        comm = kwargs["comm"]
        if comm == MPI.COMM_NULL or getattr(comm, "_exchange", None) is None:
            return getattr(NotedWin, name)(**kwargs)
        _join(comm, name)
        window: StrictWin = NotedWin.__new__(cls, getattr(NotedWin, name)(**kwargs))
        window.comm, window.exchange = comm, comm._exchange
        mine = kwargs["disp_unit"], len(window._memory())
        window.units, window.sizes = zip(
            *window.exchange.shadow.allgather(mine), strict=True
        )  # in bytes, by rank
        window.under_way, window.accesses, window.locks = [], [], {}
        _open.append(window)
        return freed.track(window, "window")

    def _memory(self) -> bytes:
        memory = self.tomemory()
        return b"" if memory is None else memory.tobytes()

    def _access(self, name: str, origin: Any, target: int, spec: Any, *op: MPI.Op) -> None:
        if target == MPI.PROC_NULL:
            return
        if MPI.OP_NULL in op:
            raise MPI.Exception(MPI.ERR_OP)
        arguments.check_message(self.comm, name, origin, target)
        if not 0 <= target < self.comm.size:
            raise MPI.Exception(MPI.ERR_RANK)
        lock = self.locks.get(target) or self.locks.get(-1)
        if not (self.in_fence or lock or self.in_start):
            raise MPI.Exception(MPI.ERR_RMA_SYNC)
        without_lock = "fence" if self.in_fence else "start"
        epoch = lock[0] if lock else without_lock
        began = () if epoch == "fence" else tuple(clock.times[member] for member in self.exchange.members)
        parts = self._checked_parts(name, origin, target, spec)
        access = Access(name, target, parts, here(), self.comm.rank, epoch, began)
        self.accesses.append(access)
        region = Region(name, access.place, origin, is_written=name == "Get")
        spec, types = memory.with_own_types(spec)
        region.types += types
        issue = functools.partial(getattr(NotedWin, name), self, region.message, target, spec, *op)
        self.under_way.append(OpenAccess(access, region, issue))

    def _checked_parts(self, name: str, origin: Any, target: int, spec: Any) -> Parts:
        """Return the bytes of the target's window that an access touches; an error if it has fewer."""
        parts = self._parts(origin, target, spec)
        first, last = min((low for low, _ in parts), default=0), max((high for _, high in parts), default=0)
        if first < 0 or last > self.sizes[target]:
            raise StrictError(
                f"{name} uses bytes {first} to {last} of rank {target}'s window, "
                f"which holds {self.sizes[target]} bytes ({here()})",
                self.comm.rank,
            )
        return parts

    def _parts(self, origin: Any, target: int, spec: Any) -> Parts:
        place, *counted = spec if isinstance(spec, (list, tuple)) else (spec or 0,)
        first = place * self.units[target]
        if not counted or not isinstance(counted[0], int):
            held = self.units[target] if origin is None else of_message(origin).nbytes
            return ((first, first + held),)
        count, message = counted[0], arguments.parse(origin)
        datatype = counted[1] if len(counted) > 1 else message.datatype
        if isinstance(datatype, str):
            datatype = MPI.Datatype.fromcode(datatype)
        if datatype is None:
            return ((first, first + count * getattr(message.buffer, "itemsize", 1)),)
        return memory.bytes_of(datatype, count, first)

    def _issue(self, target: int = -1) -> None:
        """Issue the accesses to a rank, or to all ranks."""
        for pending in self.under_way:
            if target in (-1, pending.access.target) and not pending.is_issued:
                pending.is_issued = True
                pending.region.check()
                pending.issue()

    def _release(self, target: int = -1) -> None:
        """End the use of the origins' memory by accesses to a rank, or to all ranks."""
        for pending in self.under_way:
            if target in (-1, pending.access.target):
                pending.region.end(check=False)
        self.under_way = [pending for pending in self.under_way if target not in (-1, pending.access.target)]

    def _access_at_once(self, name: str, kwargs: dict[str, Any]) -> Any:
        """Make an access whose result is available before the epoch ends."""
        check_access(name, kwargs)
        target, spec = kwargs["target_rank"], kwargs.get("target", kwargs.get("target_disp", 0))
        if 0 <= target < self.comm.size:
            self._checked_parts(name, kwargs.get("origin"), target, spec)
        self._issue()
        return getattr(NotedWin, name)(self, **kwargs)

    def Fence(self, assertion: int = 0) -> None:
        _join(self.comm, "Fence")
        self._end_locks()
        stores = self._local_stores() if self.in_fence else []
        self._compare([access for access in self.accesses if access.epoch == "fence"] + stores)
        self.accesses = [access for access in self.accesses if access.epoch != "fence"]
        self._issue()
        super().Fence(assertion)
        self._release()
        self.in_fence = not assertion & MPI.MODE_NOSUCCEED
        self.seen = self._memory() if self.in_fence else b""

    def _local_stores(self) -> list[Access]:
        now = np.frombuffer(self._memory(), np.uint8)
        changed = np.flatnonzero(now != np.frombuffer(self.seen, np.uint8))
        runs = np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1) if len(changed) else []
        parts = tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
        return [Access(STORE, self.comm.rank, parts, "", self.comm.rank)] if parts else []

    def _compare(self, mine: list[Access]) -> None:
        """Report conflicting accesses to this rank's window. Collective."""
        everyone = self.exchange.shadow.allgather(mine)
        report_conflicts(
            [access for theirs in everyone for access in theirs if access.target == self.comm.rank]
        )

    def _lock(self, name: str, kwargs: dict[str, Any]) -> None:
        getattr(NotedWin, name)(self, **kwargs)
        kind = "exclusive" if kwargs.get("lock_type") == MPI.LOCK_EXCLUSIVE else "shared"
        self.locks[kwargs.get("rank", -1)] = kind, here()

    def _complete(self, name: str, rank: int = -1) -> None:
        """Do a Flush or Unlock: accesses to a rank or to all (-1) complete, perhaps only at their origin."""
        self._issue(rank)
        getattr(NotedWin, name)(self, *(() if name.endswith("all") else (rank,)))
        self._release(rank)
        ended = clock.tick()
        for access in self.accesses:
            is_complete = access.operation == "Get" or "local" not in name
            is_of_lock = access.epoch in ("exclusive", "shared") and not access.ended
            if is_of_lock and is_complete and rank in (-1, access.target):
                access.ended = ended
        if name.startswith("Unlock"):
            self.locks.pop(rank, None)

    def Start(self, group: MPI.Group, assertion: int = 0) -> None:
        super().Start(group, assertion)
        self.in_start = True

    def Complete(self) -> None:
        self._issue()
        super().Complete()
        self._release()
        self.in_start = False
        self.accesses = [access for access in self.accesses if access.epoch != "start"]

    def Free(self) -> None:
        _join(self.comm, "Free")
        self._end_locks()
        pending = [window_access.access for window_access in self.under_way if not window_access.is_issued]
        if pending:
            last = pending[-1]
            text = f"the window was freed before the epoch of its last {last.operation} ended"
            add(Category.EPOCH_LIFECYCLE, text, last.place)
        self._compare([access for access in self.accesses if access.epoch != "fence"])
        self._release()
        _open[:] = [window for window in _open if window is not self]
        freed.forget(self)
        super().Free()

    def _end_locks(self) -> None:
        """Report locks that were never unlocked, and unlock them."""
        for kind, place in self.locks.values():
            text = f"the {kind} lock of the window was never unlocked"
            add(Category.EPOCH_LIFECYCLE, text, place)
        if self.locks:
            self._issue()
        for rank in list(self.locks):
            (NotedWin.Unlock_all(self) if rank < 0 else NotedWin.Unlock(self, rank))
        self.locks = {}


def _join(comm: Any, name: str) -> None:
    comm._channel.begin_collective(f"Win.{name}", comm.deadline_s)


def free_mem(mem: MPI.buffer) -> None:
    """Free memory that MPI has allocated; an error if an open window still uses it."""
    for window in _open:
        held = window.tomemory()
        if held is not None and held.nbytes and 0 <= held.address - mem.address < mem.nbytes:
            raise StrictError(
                f"Free_mem was given the memory of a window that has not been freed ({here()})",
                window.comm.rank,
            )
    _free_mem(mem)


_open: list[StrictWin] = []  # windows of this process
_free_mem = MPI.Free_mem


add_methods(StrictWin, ("Create", "Allocate", "Allocate_shared"), "_make", NotedWin, by_name=True)
add_methods(StrictWin, ("Put", "Get", "Accumulate"), "_access", NotedWin)
add_methods(StrictWin, ("Lock", "Lock_all"), "_lock", NotedWin, by_name=True)
_FLUSHES = "Flush", "Flush_all", "Flush_local", "Flush_local_all"
add_methods(StrictWin, (*_FLUSHES, "Unlock", "Unlock_all"), "_complete", NotedWin)
_AT_ONCE = (
    *("Rput", "Rget", "Raccumulate", "Get_accumulate", "Rget_accumulate", "Fetch_and_op"),
    "Compare_and_swap",
)
add_methods(StrictWin, _AT_ONCE, "_access_at_once", NotedWin, by_name=True)
like(StrictWin, RawWin)
