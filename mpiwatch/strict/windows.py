"""Windows in strict mode: accesses are compared in the call that ends their epoch.

MPI lets a Put or Get take place at any time before its epoch ends, so strict mode issues all of them at the
end. Therefore, the rank itself has made every change in its window's memory between two fences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import Win as RawWin

from mpiwatch.communicators import ACCESSES, check_access
from mpiwatch.message import check_message, parse
from mpiwatch.opcodes import UNKNOWN
from mpiwatch.requests import LikeMpi4py, like
from mpiwatch.strict import objects, regions
from mpiwatch.strict.accesses import Access, parts_of, report_conflicts
from mpiwatch.strict.communicator.comm import StrictComm
from mpiwatch.strict.findings import Category, Finding, StrictError, add
from mpiwatch.strict.objects import free_types, here, with_own_types
from mpiwatch.strict.signatures import of_message


class Pending(NamedTuple):
    """An access that the program has made: its target, the origin's memory and the call that issues it."""

    target: int
    region: regions.Region
    issue: Callable[[], None]
    types: list[MPI.Datatype]  # freed when the access has been issued


class StrictWin(RawWin, metaclass=LikeMpi4py):
    """A window whose collective calls end with a report if a rank is missing.

    Windows that `_maker` does not make, such as those of Create_dynamic, are mpi4py's own.
    """

    comm: StrictComm

    def __new__(cls, win: RawWin | None = None) -> Any:
        return RawWin.__new__(RawWin, *(() if win is None else (win,)))

    def _opened(self, comm: Any, disp_unit: int) -> StrictWin:
        self.comm = comm
        shadow = comm._exchange.shadow
        held = self.tomemory()
        mine = disp_unit, 0 if held is None else held.nbytes
        self.units, self.sizes = zip(*shadow.allgather(mine), strict=True)  # in bytes, by rank
        _open.append(self)
        self.pending: list[Pending] = []  # not issued
        self.issued: list[Pending] = []  # their epoch has not ended
        self.accesses: list[Access] = []
        self.locks: dict[int, tuple[str, str]] = {}  # kind, line
        self.in_fence = self.in_start = False
        self.seen = b""
        return objects.track(self, "window")

    def _join(self, name: str) -> None:
        self.comm._channel.begin_collective(
            f"Win.{name}", self.comm.deadline_s, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, depth=3
        )

    def _memory(self) -> bytes:
        memory = self.tomemory()
        return b"" if memory is None else memory.tobytes()

    def _access(self, name: str, origin: Any, target: int, spec: Any, *op: MPI.Op) -> None:
        place, rank = here(), self.comm._exchange.clock.rank  # type: ignore[union-attr]
        if target == MPI.PROC_NULL:
            return
        check_message(self.comm, name, origin, target)
        if not 0 <= target < self.comm.size:
            raise MPI.Exception(MPI.ERR_RANK)
        lock = self.locks.get(target) or self.locks.get(-1)
        if not (self.in_fence or lock or self.in_start):
            raise MPI.Exception(MPI.ERR_RMA_SYNC)
        is_fence = not lock and self.in_fence
        self.accesses.append(
            Access(
                name,
                target,
                self._checked_parts(name, origin, target, spec),
                place,
                self.comm.rank,
                "fence" if is_fence else (lock[0] if lock else "start"),
                () if is_fence else self._now(),
            )
        )
        region = regions.begin(name, place, origin, name == "Get", rank)
        spec, types = with_own_types(spec)
        issue = functools.partial(getattr(RawWin, name), self, region.message, target, spec, *op)
        self.pending.append(Pending(target, region, issue, types))

    def _now(self) -> tuple[int, ...]:
        exchange = self.comm._exchange
        assert exchange is not None
        return tuple(exchange.clock.times[member] for member in exchange.members)

    def _checked_parts(self, name: str, origin: Any, target: int, spec: Any) -> tuple[tuple[int, int], ...]:
        """Return the bytes of the target's window that an access touches; an error if it has fewer."""
        parts = self._parts(origin, target, spec)
        first, last = min((low for low, _ in parts), default=0), max((high for _, high in parts), default=0)
        if first < 0 or last > self.sizes[target]:
            raise StrictError(
                f"rank {self.comm.rank}: {name} uses bytes {first} to {last} of rank {target}'s window, "
                f"which holds {self.sizes[target]} bytes ({here()})"
            )
        return parts

    def _parts(self, origin: Any, target: int, spec: Any) -> tuple[tuple[int, int], ...]:
        """Return the bytes of the target's window that an access touches."""
        unit = self.units[target]
        held = of_message(origin).nbytes if origin is not None else unit
        if spec is None:
            return ((0, held),)
        if not isinstance(spec, (list, tuple)):
            return ((spec * unit, spec * unit + held),)
        first = spec[0] * unit
        if len(spec) > 1 and isinstance(spec[1], int):
            datatype = spec[2] if len(spec) > 2 else parse(origin).datatype if origin is not None else None
            if isinstance(datatype, str):
                datatype = MPI.Datatype.fromcode(datatype)
            if datatype is None:
                return ((first, first + spec[1] * parse(origin).buffer.itemsize),)
            return parts_of(datatype, spec[1], first)
        return ((first, first + held),)

    def _issue(self, target: int = -1) -> None:
        """Issue the accesses to a rank, or to all ranks."""
        now = [each for each in self.pending if target in (-1, each.target)]
        self.pending = [each for each in self.pending if each not in now]
        for each in now:
            each.region.check()
            each.issue()
            free_types(each.types)
        self.issued += now

    def _release(self, target: int = -1) -> None:
        """End the use of the origins' memory by accesses to a rank, or to all ranks."""
        for each in self.issued:
            if target in (-1, each.target):
                regions.end(each.region, check=False)
        self.issued = [each for each in self.issued if target not in (-1, each.target)]

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        self._access("Put", origin, target_rank, target)

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        self._access("Get", origin, target_rank, target)

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM) -> None:
        if op == MPI.OP_NULL:
            raise MPI.Exception(MPI.ERR_OP)
        self._access("Accumulate", origin, target_rank, target, op)

    def Fence(self, assertion: int = 0) -> None:
        self._join("Fence")
        if self.locks:
            self._never_unlocked()
        stores = self._local_stores() if self.in_fence else []
        self._compare([each for each in self.accesses if each.epoch == "fence"] + stores)
        self.accesses = [each for each in self.accesses if each.epoch != "fence"]
        self._issue()
        super().Fence(assertion)
        self._release()
        self.in_fence = not assertion & MPI.MODE_NOSUCCEED
        self.seen = self._memory() if self.in_fence else b""

    def _local_stores(self) -> list[Access]:
        now = self._memory()
        changed = np.flatnonzero(np.frombuffer(now, np.uint8) != np.frombuffer(self.seen, np.uint8))
        rank = self.comm.rank
        runs = np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1) if len(changed) else []
        parts = tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
        return [Access("local store", rank, parts, "", rank)] if parts else []

    def _compare(self, mine: list[Access]) -> None:
        """Report conflicting accesses to this rank's window. Collective."""
        exchange = self.comm._exchange
        assert exchange is not None
        found = exchange.shadow.allgather(mine)
        here_ = [access for accesses in found for access in accesses if access.target == self.comm.rank]
        report_conflicts(here_, exchange.clock.rank)

    def Lock(self, rank: int, lock_type: int = MPI.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        super().Lock(rank, lock_type, assertion)
        self._locked(rank, "exclusive" if lock_type == MPI.LOCK_EXCLUSIVE else "shared")

    def Lock_all(self, assertion: int = 0) -> None:
        super().Lock_all(assertion)
        self._locked(-1, "shared")

    def _locked(self, rank: int, kind: str) -> None:
        self.locks[rank] = kind, here()

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
        ended = self.comm._exchange.clock.tick()  # type: ignore[union-attr]
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
        self._join("Free")
        if self.locks:
            self._never_unlocked()
        if self.pending:
            operation = next(access for access in reversed(self.accesses))
            add(
                Finding(
                    Category.EPOCH_LIFECYCLE,
                    f"the window was freed before the epoch of its last {operation.operation} ended",
                    operation.place,
                    self.comm._exchange.clock.rank,  # type: ignore[union-attr]
                )
            )
        self._compare([each for each in self.accesses if each.epoch != "fence"])
        for each in self.pending:
            regions.end(each.region, check=False)
        self._release()
        self.pending = []
        _open[:] = [each for each in _open if each is not self]
        objects.forget(self)
        super().Free()

    def _never_unlocked(self) -> None:
        for kind, place in self.locks.values():
            add(
                Finding(
                    Category.EPOCH_LIFECYCLE,
                    f"the {kind} lock of the window was never unlocked",
                    place,
                    self.comm._exchange.clock.rank,  # type: ignore[union-attr]
                )
            )
        self._issue()
        for rank in list(self.locks):
            (RawWin.Unlock_all(self) if rank < 0 else RawWin.Unlock(self, rank))
        self.locks = {}


def _flushing(name: str) -> Callable[..., None]:
    def flush(self: StrictWin, rank: int = -1) -> None:
        self._issue(rank)
        getattr(RawWin, name)(self, *(() if name.endswith("all") else (rank,)))
        self._completed(rank, only_here="local" in name)

    return flush


def _at_once(name: str) -> Callable[..., Any]:
    """Return a method whose result is available before the epoch ends."""

    def access(self: StrictWin, *arguments: Any, **named: Any) -> Any:
        check_access(name, arguments, named)
        origin, *_, target, spec = _at_target(name, arguments, named)
        if 0 <= target < self.comm.size:
            self._checked_parts(name, origin, target, spec)
        self._issue()
        return getattr(RawWin, name)(self, *arguments, **named)

    return access


def _at_target(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, int, Any]:
    """Return an access's origin, the target's rank and which part of its window it uses."""
    names = ["origin", *["result"] * (ACCESSES[name] - 1), "target_rank", "target"]
    given = dict(zip(names, arguments, strict=False)) | named
    spec = given.get("target", given.get("target_disp", 0))
    return given.get("origin"), given["target_rank"], spec


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


def _maker(name: str, position: int) -> Any:
    def make(cls: type[StrictWin], *arguments: Any, **named: Any) -> Any:
        comm = named.get("comm", arguments[position + 2] if len(arguments) > position + 2 else MPI.COMM_SELF)
        if isinstance(comm, StrictComm) and comm != MPI.COMM_NULL and comm._exchange is not None:
            comm._channel.begin_collective(
                f"Win.{name}", comm.deadline_s, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, depth=2
            )
            unit = named.get("disp_unit", arguments[position] if len(arguments) > position else 1)
            made: StrictWin = RawWin.__new__(cls, getattr(RawWin, name)(*arguments, **named))
            return made._opened(comm, unit)
        return getattr(RawWin, name)(*arguments, **named)

    return classmethod(functools.wraps(getattr(RawWin, name))(make))


for _name in "Create", "Allocate", "Allocate_shared":
    setattr(StrictWin, _name, _maker(_name, 1))
for _name in "Flush", "Flush_all", "Flush_local", "Flush_local_all":
    setattr(StrictWin, _name, _flushing(_name))
for _name in "Rput", "Rget", "Raccumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap":
    setattr(StrictWin, _name, _at_once(_name))
like(StrictWin, RawWin)
