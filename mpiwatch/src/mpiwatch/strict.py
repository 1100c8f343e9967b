"""Strict mode: errors that show only with other sizes, on other machines, or after hours.

`begin` puts `mpi4py.MPI` into strict mode; `end_cell`, `end_function` and `end_program` list the findings.

Its communicator is a watched one above another way for messages to travel (see `Exchange`): sends wait for
their receives, and the ranks compare their operations.

The accesses of its windows are compared in the call that ends their epoch. MPI lets a Put or Get take place
at any time before its epoch ends, so strict mode issues all of them at the end. Therefore, the rank itself
has made every change in its window's memory between two fences.
"""

# ruff: noqa: PLR0917 (signatures as mpi4py has them)

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from time import sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch import arguments, communicators, findings, messages, operations, requests
from mpiwatch.arguments import TO_ROOT, is_in_place, plain_name
from mpiwatch.communicators import WatchedComm, check_access
from mpiwatch.findings import Category, Finding, Parts, Region, StrictError, add, here
from mpiwatch.library_calls import NotedWin, RawWin, like
from mpiwatch.operations import Exchange, Operation, StrictPrequest, StrictRequest, clock, progress
from mpiwatch.recorder import CellState
from mpiwatch.report import CallRecord
from mpiwatch.signatures import of_message
from mpiwatch.wrapper import add_methods

__all__ = [
    "Category",
    "Finding",
    "StrictRequest",
    "begin",
    "end_cell",
    "end_function",
    "end_program",
    "progress",
    "report_errors_to",
]

FROM_ROOT = ("bcast", *arguments.FROM_ROOT)
REDUCING = "reduce", "allreduce", "scan", "exscan"

# Collective -> the argument whose count and dtype are the same on all ranks.
COMPARED = {"bcast": "buf", "reduce": "sendbuf", "allreduce": "sendbuf", "scan": "sendbuf"}


class StrictComm(WatchedComm):
    """A watched communicator whose `Send` and `send` are synchronous and whose messages are compared.

    Messages on communicators made by Idup have no headers.
    """

    _exchange: Exchange | None = None

    def begin(self) -> None:
        """Open the exchange of headers for this communicator. Collective."""
        channel = self._channel
        if channel is None:
            return
        self._exchange = exchange = Exchange(self, channel.members)

        def has_begun(name: str, root: int) -> None:
            if name not in ("Free", "Disconnect"):
                _merge_clocks(exchange, name, root)

        channel.has_begun = has_begun

    @property
    def _compares_amounts(self) -> bool:
        return self._exchange is not None

    def _renew(self, duplicate: Callable[[], MPI.Intracomm]) -> None:
        super()._renew(duplicate)
        if self._exchange is not None:
            self._exchange.renew(duplicate())

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        if is_ready:
            new.begin()
        findings.track(new, findings.COMMUNICATOR)

    def _end(self, name: str) -> None:
        super()._end(name)
        findings.forget(self)
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def Get_group(self) -> MPI.Group:
        return MPI.Group.adopt(super().Get_group())  # type: ignore[attr-defined]

    def _check(self, peer: int, tag: int, receives: bool) -> None:
        if self == MPI.COMM_NULL:
            raise MPI.Exception(MPI.ERR_COMM)
        if self.watch is not None:
            self.watch.check_process()
        if not (0 <= peer < self.size or peer == MPI.PROC_NULL or (receives and peer == MPI.ANY_SOURCE)):
            raise MPI.Exception(MPI.ERR_RANK)
        largest_tag = int(MPI.COMM_SELF.Get_attr(MPI.TAG_UB) or 32767)
        if not (0 <= tag <= largest_tag or (receives and tag == MPI.ANY_TAG)):
            raise MPI.Exception(MPI.ERR_TAG)

    def _start(self, name: str, buf: Any, peer: int, tag: int) -> MPI.Request:
        if not name.endswith("_init"):
            return StrictRequest(None, self._operation(name, buf, peer, tag))
        self._check(peer, tag, receives=name == "Recv_init")
        return StrictPrequest(None, lambda: self._operation(name, buf, peer, tag), name, here())

    def _operation(self, name: str, buf: Any, peer: int, tag: int) -> Operation:
        """Start a send or a receive; one that goes nowhere or has no header is one of the MPI library."""
        receives = "recv" in name.lower()
        self._check(peer, tag, receives)
        if self._exchange is None or peer == MPI.PROC_NULL:
            plain = name.removesuffix("_init")
            plain = messages.STARTED_BY.get(plain, plain)
            return Operation(name, here(), getattr(MPI.Intracomm, plain)(self, buf, peer, tag))
        kind = operations.ReceiveOperation if receives else operations.SendOperation
        return kind(self._exchange, name, buf, peer, tag, here())

    def _receive_object(self, name: str, source: int, tag: int, status: Any, sends_too: bool = False) -> Any:
        if self._exchange is None:
            return super()._receive_object(name, source, tag, status, sends_too)
        call = self._operation("recv", None, source, tag)
        self._receive(name, StrictRequest(None, call), None, source, tag, status, sends_too)
        return call.received

    def _probe(self, name: str, source: int, tag: int, status: MPI.Status | None) -> Any:
        exchange = self._exchange
        self._check(source, tag, receives=True)
        if exchange is None or source == MPI.PROC_NULL:
            return super()._probe(name, source, tag, status)
        with operations.lock:
            exchange.progress()
            header = exchange.find(source, tag)
            if header is not None and status is not None:
                status.source, status.tag = header.source, header.tag
                status.Set_elements(MPI.BYTE, header.signature.nbytes)
            if name.lower() == "iprobe":
                return header is not None
            if header is None:
                return None
            message: MPI.Message | None = getattr(exchange.shadow, name)(header.source, header.number)
            if message is not None:
                exchange.unexpected.remove(header)
                clock.merge(header.clock)
            return message

    def _do_isendrecv(
        self, name: str, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int
    ) -> Any:
        receive = self._operation("Irecv", recvbuf, source, recvtag)
        send = self._operation("Isend", sendbuf, dest, sendtag)
        call = operations.BothOperation(name, send, receive, f"{name} to rank {dest} and from rank {source}")
        return requests.polled(StrictRequest(None, call), name, self, source, recvtag, sys._getframe(2))

    def _start_collective(self, name: str, given: dict[str, Any]) -> MPI.Request:
        """Start a collective; the ranks compare their operations."""
        if "eighbor" in name:
            return super()._start_collective(name, given)
        plain = plain_name(name)

        def begin() -> Operation:
            of_started = {key: value for key, value in given.items() if key != "info"}
            request = getattr(MPI.Intracomm, f"I{plain}")(self, **of_started)
            if self._exchange is None:
                return Operation(name, here(), request)
            regions = [
                Region(name, here(), buffer, is_written)
                for buffer, is_written in _buffers(plain, given, self.rank == given.get("root", 0))
            ]
            call = _described(name, plain, given)
            return operations.CollectiveOperation(self._exchange, call, request, regions)

        if name.endswith("_init"):
            return StrictPrequest(None, begin, name, here())
        return StrictRequest(None, begin())


add_methods(StrictComm, ("Bsend", "bsend"), "_do_send")
add_methods(StrictComm, ("Isend", "Irecv"), "_do_start")
add_methods(StrictComm, ("Isendrecv",), "_do_isendrecv")


def _merge_clocks(exchange: Exchange, name: str, root: int) -> None:
    """Note which ranks' steps happened before this collective ends; all ranks have joined it."""
    mine = np.array(clock.times, np.int64)
    everyone = np.empty((len(exchange.members), len(mine)), np.int64)
    MPI.Intracomm.Allgather(exchange.shadow, mine, everyone)
    if name.lower() in FROM_ROOT:
        everyone = everyone[[root]]
    elif name.lower() in TO_ROOT and exchange.rank != root:
        return
    clock.merge(everyone.max(axis=0).tolist())


def _buffers(plain: str, given: dict[str, Any], is_root: bool) -> list[tuple[Any, bool]]:
    """Return the buffers that a collective uses on this rank, and whether it writes to them."""
    ignored = {} if is_root else {"recvbuf": TO_ROOT, "sendbuf": FROM_ROOT}
    return [
        (given[key], key == "recvbuf" or (key == "buf" and not is_root))
        for key in ("buf", "sendbuf", "recvbuf")
        if not (is_in_place(given.get(key)) or plain.endswith(("w", "v")))
        and plain not in ignored.get(key, ())
    ]


def _described(name: str, plain: str, given: dict[str, Any]) -> CallRecord:
    """Return what the ranks compare of a non-blocking collective."""
    root = given.get("root", 0) if plain in (*FROM_ROOT, *TO_ROOT) else None
    compared = given.get(COMPARED.get(plain, ""))
    signature = None if is_in_place(compared) else of_message(compared)
    count, dtype = (None, None) if signature is None else (signature.elements, signature.dtype or None)
    reduction = arguments.REDUCTIONS.get(id(given["op"])) if plain.startswith(REDUCING) else None
    return CallRecord(0, 0, name, root, count, dtype, reduction, here(), 0)


# Windows

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
        return may_conflict and findings.overlap(self.parts, other.parts) and self._may_be_at_once(other)

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
    def _make(cls, name: str, given: dict[str, Any]) -> Any:
        comm = given["comm"]
        if comm == MPI.COMM_NULL or getattr(comm, "_exchange", None) is None:
            return getattr(NotedWin, name)(**given)
        _join(comm, name)
        made: StrictWin = NotedWin.__new__(cls, getattr(NotedWin, name)(**given))
        made.comm, made.exchange = comm, comm._exchange
        mine = given["disp_unit"], len(made._memory())
        made.units, made.sizes = zip(*made.exchange.shadow.allgather(mine), strict=True)  # in bytes, by rank
        made.under_way, made.accesses, made.locks = [], [], {}
        _open.append(made)
        return findings.track(made, "window")

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
        epoch = lock[0] if lock else "fence" if self.in_fence else "start"
        began = () if epoch == "fence" else tuple(clock.times[member] for member in self.exchange.members)
        parts = self._checked_parts(name, origin, target, spec)
        access = Access(name, target, parts, here(), self.comm.rank, epoch, began)
        self.accesses.append(access)
        region = Region(name, access.place, origin, is_written=name == "Get")
        spec, types = findings.with_own_types(spec)
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
        count, given = counted[0], arguments.parse(origin)
        datatype = counted[1] if len(counted) > 1 else given.datatype
        if isinstance(datatype, str):
            datatype = MPI.Datatype.fromcode(datatype)
        if datatype is None:
            return ((first, first + count * given.buffer.itemsize),)
        return findings.bytes_of(datatype, count, first)

    def _issue(self, target: int = -1) -> None:
        """Issue the accesses to a rank, or to all ranks."""
        for each in self.under_way:
            if target in (-1, each.access.target) and not each.is_issued:
                each.is_issued = True
                each.region.check()
                each.issue()

    def _release(self, target: int = -1) -> None:
        """End the use of the origins' memory by accesses to a rank, or to all ranks."""
        for each in self.under_way:
            if target in (-1, each.access.target):
                each.region.end(check=False)
        self.under_way = [each for each in self.under_way if target not in (-1, each.access.target)]

    def _access_at_once(self, name: str, given: dict[str, Any]) -> Any:
        """Make an access whose result is available before the epoch ends."""
        check_access(name, given)
        target, spec = given["target_rank"], given.get("target", given.get("target_disp", 0))
        if 0 <= target < self.comm.size:
            self._checked_parts(name, given.get("origin"), target, spec)
        self._issue()
        return getattr(NotedWin, name)(self, **given)

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

    def _lock(self, name: str, given: dict[str, Any]) -> None:
        getattr(NotedWin, name)(self, **given)
        kind = "exclusive" if given.get("lock_type") == MPI.LOCK_EXCLUSIVE else "shared"
        self.locks[given.get("rank", -1)] = kind, here()

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
        self.accesses = [each for each in self.accesses if each.epoch != "start"]

    def Free(self) -> None:
        _join(self.comm, "Free")
        self._end_locks()
        if pending := [each.access for each in self.under_way if not each.is_issued]:
            last = pending[-1]
            text = f"the window was freed before the epoch of its last {last.operation} ended"
            add(Category.EPOCH_LIFECYCLE, text, last.place)
        self._compare([each for each in self.accesses if each.epoch != "fence"])
        self._release()
        _open[:] = [each for each in _open if each is not self]
        findings.forget(self)
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
_AT_ONCE = "Rput", "Rget", "Raccumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap"
add_methods(StrictWin, _AT_ONCE, "_access_at_once", NotedWin, by_name=True)
like(StrictWin, RawWin)


# Begin strict mode, and list its findings at the end of a cell or program

NAP_S = 0.001

_world: StrictComm | None = None


def begin(world: WatchedComm, is_own_call: Callable[[], bool] | None = None) -> StrictComm:
    """Put `mpi4py.MPI` into strict mode; return the world's communicator. The first call is collective.

    `is_own_call` tells whether the program itself makes the present call; by default, its line does.
    """
    global _world  # noqa: PLW0603
    if is_own_call is not None:
        findings.is_own_call = is_own_call
    if _world is not None or world.watch is None:
        return _world or StrictComm(world)
    watch = world.watch
    clock.rank, clock.times = world.rank, [0] * world.size
    _world = StrictComm(world)
    _world.begin()
    inner = watch.progress
    watch.progress = lambda: operations.progress(inner())
    communicators.replace_world(_world)
    requests.replace_requests(operations.StrictRequest, operations.StrictPrequest)
    requests.on_request = operations.add_request
    findings.replace_classes()
    arguments.on_list = findings.check_dtype
    MPI.Free_mem = free_mem
    setattr(MPI, "Win", StrictWin)  # noqa: B010  (mpi4py's stubs declare it final)
    return _world


def report_errors_to(note: Callable[[Finding], object]) -> None:
    """Call `note` at once for each error that is found: the MPI library may end this process for it."""
    findings.on_error = note


def end_cell() -> str:
    """Return what this rank's cell has left behind, as text; empty if nothing.

    This includes findings, requests and objects that no variable refers to any more, and messages that have
    arrived but were never received. No rank waits for another.
    """
    if _world is None:
        return ""
    _report_leftovers(only_dropped=True)
    return findings.render(findings.take())


def end_function() -> list[Finding]:
    """Return the findings about a function that has just returned, and what it has left behind.

    Unlike `end_cell`, this also reports requests that a variable still refers to. No rank waits for another.
    """
    if _world is None:
        return []
    operations.report_never_completed(only_dropped=False)
    _report_leftovers(only_dropped=True)
    return findings.take()


def end_program() -> tuple[list[Finding], bool]:
    """Return the findings about the program, and whether all ranks have reached the end of their programs.

    On rank 0, these are the findings of all ranks, on other ranks their own. Each rank calls this function
    when its program has returned. The ranks wait for one another, as they would at the end of MPI. If one
    hangs or has raised an error, each returns only its own findings.
    """
    if _world is None or _world._exchange is None or _world.watch is None:
        return [], True
    _world.watch.end_program()  # ranks that wait for this one learn that it has ended
    if _poll(_world, MPI.Intracomm.Ibarrier(_world._exchange.shadow).Test):
        return collect(_world), True
    operations.report_never_completed(only_dropped=False)
    return findings.take(), False


def collect(world: StrictComm) -> list[Finding]:
    """Return the findings of all ranks on rank 0, and clear them. All ranks have reached their ends."""
    assert world._exchange is not None
    shadow = world._exchange.shadow
    sent = np.array([operations.headers_sent[rank] for rank in range(world.size)])
    coming = np.empty_like(sent)
    MPI.Intracomm.Alltoall(shadow, sent, coming)
    arrived = operations.headers_received
    _poll(world, lambda: all(arrived[rank] >= number for rank, number in enumerate(coming)))
    _report_leftovers(only_dropped=False)
    for exchange in list(operations.exchanges):
        exchange.discard()
    found = findings.take()
    everyone = MPI.Intracomm.gather(shadow, found)
    return found if everyone is None else [finding for theirs in everyone for finding in theirs]


def _report_leftovers(only_dropped: bool) -> None:
    for exchange in list(operations.exchanges):
        exchange.report_leftovers()
    operations.report_never_completed(only_dropped)
    findings.report_never_freed(only_dropped)


def _poll(world: StrictComm, is_done: Callable[[], bool]) -> bool:
    """Wait until `is_done()`; return False if a hang was reported or a rank has failed before that."""
    watch = world.watch
    assert watch is not None
    while not is_done():
        operations.progress()
        failed = any(slot.cell_state == CellState.RAISED for slot in watch.recorder.slots)
        if failed or watch.recorder.head.epoch != watch.epoch:
            return False
        sleep(NAP_S)
    return True
