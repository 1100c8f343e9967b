"""Windows in strict mode: accesses are compared in the call that ends their epoch.

MPI lets a Put or Get take place at any time before its epoch ends, so strict mode issues all of them at the
end. Therefore, the rank itself has made every change in its window's memory between two fences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import Win as RawWin

from labkit.comm.message import parse
from labkit.watch.flight_recorder.opcodes import UNKNOWN
from labkit.watch.requests.polled import LikeMpi4py, like
from labkit.watch.strict import objects, regions
from labkit.watch.strict.accesses import Access, report_conflicts
from labkit.watch.strict.communicator.comm import StrictComm
from labkit.watch.strict.findings import Category, Finding, add
from labkit.watch.strict.objects import here
from labkit.watch.strict.signatures import of_message


class StrictWin(RawWin, metaclass=LikeMpi4py):
    """A window whose collective calls end with a report if a rank is missing."""

    comm: StrictComm

    def _opened(self, comm: Any, disp_unit: int) -> StrictWin:
        self.comm = comm
        shadow = comm._exchange.shadow
        self.units: list[int] = shadow.allgather(disp_unit)
        self.pending: list[Callable[[], None]] = []
        self.used: list[regions.Region] = []
        self.accesses: list[Access] = []
        self.locks: dict[int, tuple[str, str, tuple[int, ...]]] = {}  # kind, line, clock
        self.in_fence = self.in_start = False
        self.seen = b""
        return objects.track(self, "window")

    def _join(self, name: str) -> None:
        self.comm._channel.rendezvous(
            f"Win.{name}", self.comm.deadline_s, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, depth=3
        )

    def _memory(self) -> bytes:
        memory = self.tomemory()
        return b"" if memory is None else memory.tobytes()

    def _access(self, name: str, origin: Any, target: int, spec: Any, issue: Callable[[], None]) -> None:
        place, rank = here(), self.comm._exchange.clock.rank  # type: ignore[union-attr]
        if target == MPI.PROC_NULL:
            return
        if not 0 <= target < self.comm.size:
            raise MPI.Exception(MPI.ERR_RANK)
        lock = self.locks.get(target) or self.locks.get(-1)
        if not (self.in_fence or lock or self.in_start):
            raise MPI.Exception(MPI.ERR_RMA_SYNC)
        first, last = self._range(origin, target, spec)
        is_fence = not lock and self.in_fence
        self.accesses.append(
            Access(
                name,
                target,
                first,
                last,
                place,
                self.comm.rank,
                "fence" if is_fence else (lock[0] if lock else "start"),
                lock[2] if lock else (),
            )
        )
        if origin is not None:
            self.used.append(regions.begin(name, place, origin, name.startswith("Get"), rank))
        self.pending.append(issue)

    def _range(self, origin: Any, target: int, spec: Any) -> tuple[int, int]:
        unit = self.units[target]
        held = of_message(origin).nbytes if origin is not None else unit
        if spec is None:
            return 0, held
        if isinstance(spec, (list, tuple)):
            first = spec[0] * unit
            if len(spec) > 1 and isinstance(spec[1], int):
                typed = spec[2] if len(spec) > 2 else None
                each = typed.Get_extent()[1] if isinstance(typed, MPI.Datatype) else 0
                datatype = parse(origin).datatype if origin is not None else None
                size = each or (datatype.Get_size() if datatype else parse(origin).buffer.itemsize)
                return first, first + spec[1] * size
            return first, first + held
        return spec * unit, spec * unit + held

    def _issue(self) -> None:
        for issue in self.pending:
            issue()
        self.pending = []

    def _check_origins(self) -> None:
        for region in self.used:
            region.check()

    def _release(self) -> None:
        for region in self.used:
            regions.end(region, check=False)
        self.used = []

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        self._access(
            "Put",
            origin,
            target_rank,
            target,
            lambda: super(StrictWin, self).Put(origin, target_rank, target),
        )

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        self._access(
            "Get",
            origin,
            target_rank,
            target,
            lambda: super(StrictWin, self).Get(origin, target_rank, target),
        )

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM) -> None:
        if op == MPI.OP_NULL:
            raise MPI.Exception(MPI.ERR_OP)
        self._access(
            "Accumulate",
            origin,
            target_rank,
            target,
            lambda: super(StrictWin, self).Accumulate(origin, target_rank, target, op),
        )

    def Fence(self, assertion: int = 0) -> None:
        self._join("Fence")
        if self.locks:
            self._never_unlocked()
        stores = self._local_stores() if self.in_fence else []
        self._compare([each for each in self.accesses if each.epoch == "fence"] + stores)
        self.accesses = [each for each in self.accesses if each.epoch != "fence"]
        self._check_origins()
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
        return [Access("local store", rank, int(run[0]), int(run[-1]) + 1, "", rank) for run in runs[:1000]]

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
        exchange = self.comm._exchange
        assert exchange is not None
        exchange.clock.tick()
        self.locks[rank] = kind, here(), tuple(exchange.clock.times[member] for member in exchange.members)

    def Unlock(self, rank: int) -> None:
        self._flush()
        super().Unlock(rank)
        self._unlocked(rank)

    def Unlock_all(self) -> None:
        self._flush()
        super().Unlock_all()
        self._unlocked(-1)

    def _unlocked(self, rank: int) -> None:
        self._release()
        self.locks.pop(rank, None)
        clock = self.comm._exchange.clock  # type: ignore[union-attr]
        ended = clock.tick()
        self.accesses = [
            access
            if access.ended or access.epoch in ("fence", "start") or rank not in (-1, access.target)
            else Access(**{**vars(access), "ended": ended})
            for access in self.accesses
        ]

    def _flush(self) -> None:
        self._check_origins()
        self._issue()

    def Start(self, group: MPI.Group, assertion: int = 0) -> None:
        super().Start(group, assertion)
        self.in_start = True

    def Complete(self) -> None:
        self._flush()
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
        self._release()
        self.pending = []
        objects.forget(self)
        super().Free()

    def _never_unlocked(self) -> None:
        for kind, place, _ in self.locks.values():
            add(
                Finding(
                    Category.EPOCH_LIFECYCLE,
                    f"the {kind} lock of the window was never unlocked",
                    place,
                    self.comm._exchange.clock.rank,  # type: ignore[union-attr]
                )
            )
        for rank in list(self.locks):
            self._flush()
            (RawWin.Unlock_all(self) if rank < 0 else RawWin.Unlock(self, rank))
        self.locks = {}


def _flushing(name: str) -> Callable[..., None]:
    def flush(self: StrictWin, *rank: int) -> None:
        self._flush()
        getattr(RawWin, name)(self, *rank)

    return flush


def _at_once(name: str) -> Callable[..., Any]:
    """Return a method whose result is available before the epoch ends."""

    def access(self: StrictWin, *arguments: Any, **named: Any) -> Any:
        self._flush()
        return getattr(RawWin, name)(self, *arguments, **named)

    return access


def _maker(name: str, position: int) -> Any:
    def make(cls: type[StrictWin], *arguments: Any, **named: Any) -> Any:
        comm = named.get("comm", arguments[position + 2] if len(arguments) > position + 2 else MPI.COMM_SELF)
        if isinstance(comm, StrictComm) and comm != MPI.COMM_NULL and comm._exchange is not None:
            comm._channel.rendezvous(
                f"Win.{name}", comm.deadline_s, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, depth=2
            )
            unit = named.get("disp_unit", arguments[position] if len(arguments) > position else 1)
            return cls(getattr(RawWin, name)(*arguments, **named))._opened(comm, unit)
        return getattr(RawWin, name)(*arguments, **named)

    return classmethod(functools.wraps(getattr(RawWin, name))(make))


for _name in "Create", "Allocate", "Allocate_shared":
    setattr(StrictWin, _name, _maker(_name, 1))
for _name in "Flush", "Flush_all", "Flush_local", "Flush_local_all":
    setattr(StrictWin, _name, _flushing(_name))
for _name in "Rput", "Rget", "Raccumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap":
    setattr(StrictWin, _name, _at_once(_name))
like(StrictWin, RawWin)
