"""Windows in strict mode: accesses are compared in the call that ends their epoch.

MPI lets a Put or Get take place at any time before its epoch ends, so strict mode issues all of them at the
end. Therefore, the rank itself has made every change in its window's memory between two fences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import Win as RawWin

from mpiwatch.buffers import check_message, parse
from mpiwatch.communicators import ACCESSES, check_access
from mpiwatch.opcodes import UNKNOWN
from mpiwatch.requests import LikeMpi4py, like
from mpiwatch.strict.calls import clock
from mpiwatch.strict.findings import Category, StrictError, add, forget, here, track
from mpiwatch.strict.memory import Parts, Region, free_types, of_message, overlap, parts_of, with_own_types

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
        return may_conflict and overlap(self.parts, other.parts) and self._may_be_at_once(other)

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


class Pending(NamedTuple):
    """An access whose epoch has not ended: the origin's memory, and the call that issues it."""

    access: Access
    region: Region
    issue: Callable[[], None]
    types: list[MPI.Datatype]  # freed when the access has been issued


class StrictWin(RawWin, metaclass=LikeMpi4py):
    """A window whose collective calls end with a report if a rank is missing.

    Windows that `_maker` does not make, such as those of Create_dynamic, are mpi4py's own.
    """

    comm: Any  # of strict mode

    def __new__(cls, win: RawWin | None = None) -> Any:
        return RawWin.__new__(RawWin, *(() if win is None else (win,)))

    def _opened(self, comm: Any, disp_unit: int) -> StrictWin:
        self.comm, self.exchange = comm, comm._exchange
        held = self.tomemory()
        mine = disp_unit, 0 if held is None else held.nbytes
        self.units, self.sizes = zip(*self.exchange.shadow.allgather(mine), strict=True)  # in bytes, by rank
        _open.append(self)
        self.pending: list[Pending] = []  # not issued
        self.issued: list[Pending] = []  # their epoch has not ended
        self.accesses: list[Access] = []
        self.locks: dict[int, tuple[str, str]] = {}  # kind, line; by rank, or -1 for all
        self.in_fence = self.in_start = False
        self.seen = b""
        return track(self, "window")

    def _memory(self) -> bytes:
        memory = self.tomemory()
        return b"" if memory is None else memory.tobytes()

    def _access(self, name: str, origin: Any, target: int, spec: Any, *op: MPI.Op) -> None:
        if target == MPI.PROC_NULL:
            return
        check_message(self.comm, name, origin, target)
        if not 0 <= target < self.comm.size:
            raise MPI.Exception(MPI.ERR_RANK)
        lock = self.locks.get(target) or self.locks.get(-1)
        if not (self.in_fence or lock or self.in_start):
            raise MPI.Exception(MPI.ERR_RMA_SYNC)
        epoch = lock[0] if lock else "fence" if self.in_fence else "start"
        began = () if epoch == "fence" else tuple(clock.times[member] for member in self.exchange.members)
        parts = self._checked_parts(name, origin, target, spec)
        access = Access(name, target, parts, here(), self.comm.rank, epoch, began)
        self.accesses.append(access)
        region = Region(name, access.place, origin, is_written=name == "Get")
        spec, types = with_own_types(spec)
        issue = functools.partial(getattr(RawWin, name), self, region.message, target, spec, *op)
        self.pending.append(Pending(access, region, issue, types))

    def _checked_parts(self, name: str, origin: Any, target: int, spec: Any) -> Parts:
        """Return the bytes of the target's window that an access touches; an error if it has fewer."""
        parts = self._parts(origin, target, spec)
        first, last = min((low for low, _ in parts), default=0), max((high for _, high in parts), default=0)
        if first < 0 or last > self.sizes[target]:
            raise StrictError(
                f"rank {self.comm.rank}: {name} uses bytes {first} to {last} of rank {target}'s window, "
                f"which holds {self.sizes[target]} bytes ({here()})"
            )
        return parts

    def _parts(self, origin: Any, target: int, spec: Any) -> Parts:
        place, *counted = spec if isinstance(spec, (list, tuple)) else (spec or 0,)
        first = place * self.units[target]
        if counted and isinstance(counted[0], int):
            count = counted[0]
            datatype = (
                counted[1] if len(counted) > 1 else parse(origin).datatype if origin is not None else None
            )
            if isinstance(datatype, str):
                datatype = MPI.Datatype.fromcode(datatype)
            if datatype is not None:
                return parts_of(datatype, count, first)
            return ((first, first + count * parse(origin).buffer.itemsize),)
        held = of_message(origin).nbytes if origin is not None else self.units[target]
        return ((first, first + held),)

    def _issue(self, target: int = -1) -> None:
        """Issue the accesses to a rank, or to all ranks."""
        now = [each for each in self.pending if target in (-1, each.access.target)]
        self.pending = [each for each in self.pending if each not in now]
        for each in now:
            each.region.check()
            each.issue()
            free_types(each.types)
        self.issued += now

    def _release(self, target: int = -1) -> None:
        """End the use of the origins' memory by accesses to a rank, or to all ranks."""
        for each in self.issued:
            if target in (-1, each.access.target):
                each.region.end(check=False)
        self.issued = [each for each in self.issued if target not in (-1, each.access.target)]

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        self._access("Put", origin, target_rank, target)

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        self._access("Get", origin, target_rank, target)

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM) -> None:
        if op == MPI.OP_NULL:
            raise MPI.Exception(MPI.ERR_OP)
        self._access("Accumulate", origin, target_rank, target, op)

    def Fence(self, assertion: int = 0) -> None:
        _join(self.comm, "Fence")
        self._end_locks()
        stores = self._local_stores() if self.in_fence else []
        self._compare([each for each in self.accesses if each.epoch == "fence"] + stores)
        self.accesses = [each for each in self.accesses if each.epoch != "fence"]
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
        report_conflicts([each for theirs in everyone for each in theirs if each.target == self.comm.rank])

    def Lock(self, rank: int, lock_type: int = MPI.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        super().Lock(rank, lock_type, assertion)
        self.locks[rank] = "exclusive" if lock_type == MPI.LOCK_EXCLUSIVE else "shared", here()

    def Lock_all(self, assertion: int = 0) -> None:
        super().Lock_all(assertion)
        self.locks[-1] = "shared", here()

    def Unlock(self, rank: int) -> None:
        self._issue(rank)
        super().Unlock(rank)
        self._completed(rank)
        self.locks.pop(rank, None)

    def Unlock_all(self) -> None:
        self._issue()
        super().Unlock_all()
        self._completed(-1)
        self.locks.pop(-1, None)

    def _completed(self, rank: int, only_here: bool = False) -> None:
        """Note that accesses to a rank, or to all (-1), have completed; `only_here`: at their origin."""
        self._release(rank)
        ended = clock.tick()
        for access in self.accesses:
            if (
                access.epoch in ("exclusive", "shared")
                and not access.ended
                and rank in (-1, access.target)
                and (access.operation == "Get" or not only_here)
            ):
                access.ended = ended

    def Start(self, group: MPI.Group, assertion: int = 0) -> None:
        super().Start(group, assertion)
        self.in_start = True

    def Complete(self) -> None:
        self._issue()
        super().Complete()
        self._release()
        self.in_start = False
        self.accesses = [each for each in self.accesses if each.epoch != "start"]

    def Free(self) -> None:
        _join(self.comm, "Free")
        self._end_locks()
        if self.pending:
            last = self.pending[-1].access
            text = f"the window was freed before the epoch of its last {last.operation} ended"
            add(Category.EPOCH_LIFECYCLE, text, last.place)
        self._compare([each for each in self.accesses if each.epoch != "fence"])
        for each in self.pending:
            each.region.end(check=False)
        self._release()
        self.pending = []
        _open[:] = [each for each in _open if each is not self]
        forget(self)
        super().Free()

    def _end_locks(self) -> None:
        """Report locks that were never unlocked, and unlock them."""
        for kind, place in self.locks.values():
            text = f"the {kind} lock of the window was never unlocked"
            add(Category.EPOCH_LIFECYCLE, text, place)
        if self.locks:
            self._issue()
        for rank in list(self.locks):
            (RawWin.Unlock_all(self) if rank < 0 else RawWin.Unlock(self, rank))
        self.locks = {}


def _join(comm: Any, name: str) -> None:
    comm._channel.begin_collective(
        f"Win.{name}", comm.deadline_s, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, depth=3
    )


def _flushing(name: str) -> Callable[..., None]:
    def flush(self: StrictWin, rank: int = -1) -> None:
        self._issue(rank)
        getattr(RawWin, name)(self, *(() if name.endswith("all") else (rank,)))
        self._completed(rank, only_here="local" in name)

    return flush


def _at_once(name: str) -> Callable[..., Any]:
    """Return a method whose result is available before the epoch ends."""
    names = ["origin", *["result"] * (ACCESSES[name] - 1), "target_rank", "target"]

    def access(self: StrictWin, *arguments: Any, **named: Any) -> Any:
        check_access(name, arguments, named)
        given = dict(zip(names, arguments, strict=False)) | named
        target, spec = given["target_rank"], given.get("target", given.get("target_disp", 0))
        if 0 <= target < self.comm.size:
            self._checked_parts(name, given.get("origin"), target, spec)
        self._issue()
        return getattr(RawWin, name)(self, *arguments, **named)

    return access


def free_mem(mem: MPI.buffer) -> None:
    """Free memory that MPI has allocated; an error if an open window still uses it."""
    for window in _open:
        held = window.tomemory()
        if held is not None and held.nbytes and 0 <= held.address - mem.address < mem.nbytes:
            raise StrictError(
                f"rank {window.comm.rank}: Free_mem was given the memory of a window that has not been freed "
                f"({here()})"
            )
    _free_mem(mem)


_open: list[StrictWin] = []  # windows of this process
_free_mem = MPI.Free_mem


def _maker(name: str) -> Any:
    def make(cls: type[StrictWin], *arguments: Any, **named: Any) -> Any:
        # Each has the arguments (memory or size, disp_unit, info, comm).
        comm = named.get("comm", arguments[3] if len(arguments) > 3 else MPI.COMM_SELF)
        if comm == MPI.COMM_NULL or getattr(comm, "_exchange", None) is None:
            return getattr(RawWin, name)(*arguments, **named)
        _join(comm, name)
        unit = named.get("disp_unit", arguments[1] if len(arguments) > 1 else 1)
        made: StrictWin = RawWin.__new__(cls, getattr(RawWin, name)(*arguments, **named))
        return made._opened(comm, unit)

    return classmethod(functools.wraps(getattr(RawWin, name))(make))


for _name in "Create", "Allocate", "Allocate_shared":
    setattr(StrictWin, _name, _maker(_name))
for _name in "Flush", "Flush_all", "Flush_local", "Flush_local_all":
    setattr(StrictWin, _name, _flushing(_name))
for _name in "Rput", "Rget", "Raccumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap":
    setattr(StrictWin, _name, _at_once(_name))
like(StrictWin, RawWin)
