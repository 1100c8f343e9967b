"""Collectives that begin only when all ranks have called the same one.

Before each blocking collective, its ranks make a rendezvous in shared memory: each notes what it is about to
call and waits, in Python, until all others have made the same call. Only then do they call the MPI library's
own collective. It can no longer hang, and no data moves if the calls differ. The cost is that every
collective synchronises, which MPI permits.

In a program, which ends with a report anyway, a rank compares its call with those of other ranks and goes on.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from _thread import get_ident
from collections.abc import Callable
from struct import Struct
from time import sleep
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakMethod

from mpi4py import MPI
from numpy import ndarray

import mpiwatch
from mpiwatch.message import check_buffers, check_writable, is_in_place, signature
from mpiwatch.opcodes import OPERATIONS, UNKNOWN
from mpiwatch.recorder import (
    EPOCH_SHIFT,
    GAVE_UP,
    HISTORY_CALLS,
    NO_RENDEZVOUS,
    NUMBER_MASK,
    NUMBER_SHIFT,
    NUMBERED_CALL,
    Call,
    ReportRequest,
    WaitingIn,
    write_members,
)
from mpiwatch.report import Mismatch, Reason
from mpiwatch.snapshot import mismatch
from mpiwatch.waiting import DEADLINE_S, Waiting, Watch
from mpiwatch.wrapper import CommWrapper

VISIBLE_S = 0.001  # a thousand times as long as a write takes to reach the other cores
NUMBER_UNIT, EPOCH_UNIT = 1 << NUMBER_SHIFT, 1 << EPOCH_SHIFT
HALF_OF_NUMBERS = (NUMBER_MASK >> 1) << NUMBER_SHIFT

NOTE_BYTES = ctypes.sizeof(Call)
_NUMBER_AND_EPOCH = -NUMBER_UNIT  # mask that clears a word's digest
_NUMBER_AND_ROW = Struct("=2q")  # the first fields of a Call
_write, _getframe = NUMBERED_CALL.pack_into, sys._getframe


def has_reached(theirs: int, word: int) -> bool:
    """Tell whether a rank has made a call of this word's number, the same or another one, or a later one."""
    ahead = ((theirs >> NUMBER_SHIFT) - (word >> NUMBER_SHIFT)) & NUMBER_MASK
    return theirs >> EPOCH_SHIFT == word >> EPOCH_SHIFT and ahead < NUMBER_MASK >> 1


class Channel:
    """A communicator's row in the flight recorder: one word per rank that identifies the rank's last call.

    In a word (see recorder.py), the number counts the collectives on this communicator, and the epoch counts
    hangs. `members`: ranks of the world, by rank in the communicator. `waits`: whether a collective begins
    only when all ranks have called it.
    """

    def __init__(
        self, watch: Watch, row: int, comm: MPI.Intracomm, members: list[int], waits: bool | None = None
    ) -> None:
        self.watch, self.row, self.rank, self.members = watch, row, comm.rank, members
        self.is_on_one_machine = len({watch.machines[rank] for rank in members}) == 1
        self.waits = self.is_on_one_machine and (watch.waits if waits is None else waits)
        self.comm = MPI.Intracomm(comm)  # the MPI library's, without its wrappers
        recorder = watch.recorder
        self.memory, self.words, self.size = recorder.memory, recorder.words, len(members)
        self.first = row * recorder.size  # in words
        self.last = self.first + len(members)
        self.own = self.first + self.rank
        self.low = recorder.words_offset + 8 * self.first  # in bytes
        self.high = self.low + 8 * len(members)
        self.number = recorder.head.first_number
        self.epoch_made = watch.epoch
        self.caller = get_ident()  # the thread that called the last collective
        self.companions: list[tuple[MPI.Intracomm, WeakMethod[Callable[[], object]]]] = []
        watch.channels.append(self)

    def live_companions(self) -> dict[int, tuple[MPI.Intracomm, Callable[[], object]]]:
        """Return the duplicates of this communicator for the lab's own messages, by their numbers.

        Each comes with the function to call when it has been renewed.
        """
        return {
            number: (own, reset)
            for number, (own, made) in enumerate(self.companions)
            if (reset := made()) is not None and own != MPI.COMM_NULL
        }

    def close(self) -> None:
        """Give the row back; called by every rank when all are done with the communicator."""
        self.watch.channels.remove(self)
        if self.rank == 0:
            self.watch.free_rows.append(self.row)

    def begin_collective(  # noqa: PLR0917  (every nanosecond counts)
        self,
        operation: int | str,
        deadline_s: float,
        root: int,
        count: int,
        dtype: int,
        reduction: int,
        depth: int = 2,
    ) -> None:
        """Note this call. Raise HangError if the members cannot all make the same one.

        If the channel `waits`, return when all have made it. Otherwise return at once, and report a mismatch
        with a call that another rank has noted. On several machines, the hub compares the notes when the
        ranks are stuck: see machines.py.

        `operation`: its number, or the name of a schedule; `dtype`: NumPy's number of it; `reduction`: the
        identity of an `MPI.Op`; -1 for none. `depth`: frames between this one and the caller's.
        """
        frame = _getframe(depth)
        word = self._note(operation, root, count, dtype, reduction, frame)
        watch = self.watch
        if self.waits:
            self._meet(word, deadline_s, frame)
            return
        watch.slot.joined_word = NO_RENDEZVOUS
        if watch.noted_row != self.row:
            watch.noted_row = self.row  # the report needs the members of the communicator used last
            write_members(watch.slot, self.members)
        if not self.is_on_one_machine:
            watch.check_epoch()
        elif (found := self.mismatch(word)) is not None:
            self._report(found, deadline_s, frame)

    def _meet(self, word: int, deadline_s: float, frame: FrameType) -> None:
        """Return when all members have made the call of this word: a rendezvous."""
        watch, memory, slot = self.watch, self.memory, self.watch.slot
        low, high, first, last, words = self.low, self.high, self.first, self.last, self.words
        same = word.to_bytes(8, sys.byteorder) * self.size
        while True:
            for _ in watch.polls:
                if memory[low:high] == same or (
                    min(words[first:last]) >= word & _NUMBER_AND_EPOCH and self.all_joined(word)
                ):
                    break
                watch.pause()
            else:
                watch.wait(lambda: self.all_joined(word), Rendezvous(self, word, deadline_s, frame))
            # From here on other ranks may rely on this one. So it checks again after writing `joined_word`
            # whether one has given up. A rank that gives up says so in its word, waits until that is visible,
            # and stays if another rank's `joined_word` shows that it is relied upon.
            slot.joined_word = word
            if memory[low:high] == same or self.all_joined(word):
                return
            slot.joined_word = 0

    def _note(  # noqa: PLR0917
        self, operation: int | str, root: int, count: int, dtype: int, reduction: int, frame: FrameType
    ) -> int:
        """Write a call to this rank's slot and row; return its word."""
        watch = self.watch
        if (caller := get_ident()) != self.caller:
            self._change_caller(caller, frame)
        # A loop makes the same call from the same line again and again, so its note is built once.
        key = (operation, root, count, dtype, reduction, frame.f_lasti, id(frame.f_code), self.row)
        _, digest, note = watch.notes.get(key) or watch.note(key, frame)
        self.number = number = (self.number + 1) & NUMBER_MASK
        place = watch.base | number << NUMBER_SHIFT
        calls = watch.calls
        _write(self.memory, watch.history + calls % HISTORY_CALLS * NOTE_BYTES, place >> NUMBER_SHIFT, note)
        watch.slot.calls_noted = watch.calls = calls + 1
        self.words[self.own] = word = place | digest
        return word

    def _change_caller(self, caller: int, frame: FrameType) -> None:
        """Note that another thread calls a collective; report it if the last one is still inside of one.

        MPI matches the collectives of a communicator by their order. It has none if two threads call them.
        """
        last, self.caller = sys._current_frames().get(self.caller), caller
        while last is not None and last.f_globals.get("__name__", "").startswith(tuple(mpiwatch.libraries)):
            if last.f_globals["__name__"] == __name__ and last.f_locals["self"]._channel is self:
                self._report(Reason.THREADS, 0.0, frame)
            last = last.f_back

    def _report(self, why: Reason | Mismatch, deadline_s: float, frame: FrameType) -> NoReturn:
        self.watch.post_place(frame)
        self.watch.slot.waiting_in = WaitingIn.COLLECTIVE
        self.watch.publish(ReportRequest(why, deadline_s, self.members, self.watch.rank))
        self.watch.raise_report()

    def all_joined(self, word: int) -> bool:
        """Tell whether all ranks have made the call of this word, or later ones; false if calls differ."""
        lowest, highest = word & ~(NUMBER_UNIT - 1), word | NUMBER_UNIT - 1  # words of this number
        # Numbers start again from 0 some day.
        behind = lowest - HALF_OF_NUMBERS
        ahead = min(highest + HALF_OF_NUMBERS, word | EPOCH_UNIT - 1)
        for rank, theirs in enumerate(self.words[self.first : self.last]):
            if theirs == word or highest < theirs < ahead:
                continue
            if behind < theirs < lowest or not self.has_joined(rank, word):
                return False
        return True

    def all_have_reached(self, number: int) -> bool:
        """Tell whether all ranks have made the call of this number (with its epoch), or later ones."""
        return all(has_reached(word, number << NUMBER_SHIFT) for word in self.words[self.first : self.last])

    def has_joined(self, rank: int, word: int) -> bool:
        """Tell whether a rank has made the same call, or a later one."""
        theirs = self.words[self.first + rank]
        if theirs == word:
            return True
        if (theirs ^ word) >> NUMBER_SHIFT:
            return has_reached(theirs, word)
        return not theirs & GAVE_UP and self.mismatch_with(rank, word) is None

    def mismatch(self, word: int) -> Mismatch | None:
        """Return in what this rank's call differs from another rank's call of the same number, if it does."""
        words = self.words[self.first : self.last].tolist()
        reached = word & _NUMBER_AND_EPOCH
        if words.count(word) == len([theirs for theirs in words if theirs >= reached]):
            return None  # the others have made the same call, or are behind
        found = (self.mismatch_with(rank, word) for rank in range(self.size))
        return next((each for each in found if each is not None), None)

    def mismatch_with(self, rank: int, word: int) -> Mismatch | None:
        """Return in what a rank's call of the same number differs from ours."""
        theirs = self.words[self.first + rank]
        if theirs == word or not has_reached(theirs, word) or theirs & GAVE_UP:
            return None
        number = word >> NUMBER_SHIFT
        mine, other = self.noted_call(self.rank, number), self.noted_call(rank, number)
        return None if mine is None or other is None else mismatch(mine, other)

    def noted_call(self, rank: int, number: int) -> Call | None:
        """Return a rank's note of its call of this number here; None if it is no longer kept."""
        recorder, member = self.watch.recorder, self.members[rank]
        history, noted = recorder.history_offset(member), recorder.slots[member].calls_noted
        for i in range(noted - 1, max(-1, noted - 1 - HISTORY_CALLS), -1):
            at = history + i % HISTORY_CALLS * NOTE_BYTES
            if _NUMBER_AND_ROW.unpack_from(self.memory, at) == (number, self.row):
                return Call.from_buffer_copy(self.memory, at)
        return None


class NoChannel:
    """The channel of a communicator that is not watched: nothing waits."""

    def begin_collective(self, *call: object, depth: int = 0) -> None:
        """Return at once."""


class Rendezvous(Waiting):
    """Waiting for all members of a communicator to make the same call."""

    def __init__(self, channel: Channel, word: int, deadline_s: float, frame: FrameType) -> None:
        super().__init__(channel.watch, channel.members, deadline_s)
        self.channel, self.word, self.frame = channel, word, frame

    def announce(self) -> None:
        self.watch.post_place(self.frame)
        self.watch.slot.waiting_in = WaitingIn.COLLECTIVE

    def withdraw(self) -> bool:
        channel = self.channel
        words = channel.words
        words[channel.own] = self.word | GAVE_UP
        sleep(VISIBLE_S)
        for rank, member in enumerate(channel.members):
            if rank != channel.rank:
                theirs = words[channel.first + rank]
                is_later = (theirs ^ self.word) >> NUMBER_SHIFT and has_reached(theirs, self.word)
                if is_later or self.watch.recorder.slots[member].joined_word == self.word:
                    words[channel.own] = self.word
                    return False
        return True

    def mismatch(self) -> Mismatch | None:
        return self.channel.mismatch(self.word)

    def is_settled(self) -> bool:
        channel, slots = self.channel, self.watch.recorder.slots
        return all(
            has_reached(word, self.word) for word in channel.words[channel.first : channel.last]
        ) and all(slots[member].waiting_in == WaitingIn.COLLECTIVE for member in self.members)

    def cannot_complete(self, patience_s: float) -> bool:
        return any(
            not self.channel.has_joined(rank, self.word) and self.watch.has_ended(member, patience_s)
            for rank, member in enumerate(self.members)
        )


class ChannelComm(CommWrapper):
    """A communicator with a channel; without one it is not watched."""

    _channel: Channel | NoChannel = NoChannel()
    deadline_s: float = DEADLINE_S

    def _renew_with(self, own: MPI.Intracomm, reset: Callable[[], object]) -> None:
        if isinstance(self._channel, Channel):
            self._channel.companions.append((own, WeakMethod(reset)))

    def _join(self, name: str, root: int = UNKNOWN, reduction: int = UNKNOWN, depth: int = 3) -> None:
        """Join a collective of which only the name, the root and the reduction are compared."""
        self._channel.begin_collective(
            OPERATIONS[name], self.deadline_s, root, UNKNOWN, UNKNOWN, reduction, depth=depth
        )


_getframe = sys._getframe
IN_PLACE = MPI.IN_PLACE

# Looked up once, not at every call.
BARRIER, BCAST, REDUCE, ALLREDUCE = (OPERATIONS[name] for name in ("Barrier", "Bcast", "Reduce", "Allreduce"))


class WatchedArrays(ChannelComm):
    """Counts and dtypes are compared before any data moves."""

    def Barrier(self) -> None:
        self._channel.begin_collective(BARRIER, self.deadline_s, -1, -1, -1, -1)
        super().Barrier()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        count, dtype = signature(buf)
        if type(buf) is not ndarray:
            check_buffers(self, "Bcast", (buf,))
        if self.rank != root:
            check_writable(buf)
        self._channel.begin_collective(BCAST, self.deadline_s, root, count, dtype, -1)
        super().Bcast(buf, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if sendbuf is IN_PLACE or sendbuf is None else sendbuf
        if type(sent) is type(recvbuf) is ndarray and recvbuf.flags.carray and sent.flags.c_contiguous:
            count, dtype = sent.size, sent.dtype.num  # in most calls; every microsecond counts
        else:
            count, dtype = signature(sent)
            check_writable(recvbuf)
            check_buffers(self, "Allreduce", (sendbuf, recvbuf))
        self._channel.begin_collective(ALLREDUCE, self.deadline_s, -1, count, dtype, id(op))
        super().Allreduce(sendbuf, recvbuf, op)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        count, dtype = signature(recvbuf if is_in_place(sendbuf) else sendbuf)
        if type(sendbuf) is not ndarray or type(recvbuf) is not ndarray:
            check_buffers(self, "Reduce", (sendbuf, recvbuf), root)
        if self.rank == root:
            check_writable(recvbuf)
        self._channel.begin_collective(REDUCE, self.deadline_s, root, count, dtype, id(op))
        super().Reduce(sendbuf, recvbuf, op, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        is_root = self.rank == root
        blocks = (recvbuf, self.size) if is_root else (sendbuf, 1)
        self._join_blocks("Gather", sendbuf, recvbuf if is_root else None, blocks, root)
        super().Gather(sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        received = recvbuf if self.rank == root else None
        self._join_dtype("Gatherv", sendbuf, received, sendbuf if received is None else received, root)
        super().Gatherv(sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        blocks = (sendbuf, self.size) if self.rank == root else (recvbuf, 1)
        self._join_blocks("Scatter", sendbuf, recvbuf, blocks, root)
        super().Scatter(sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        compared = sendbuf if self.rank == root else recvbuf
        self._join_dtype("Scatterv", sendbuf, recvbuf, compared, root)
        super().Scatterv(sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join_blocks("Allgather", sendbuf, recvbuf, (recvbuf, self.size))
        super().Allgather(sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._join_dtype("Allgatherv", sendbuf, recvbuf, recvbuf)
        super().Allgatherv(sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Alltoall", sendbuf, recvbuf, (sent, self.size))
        super().Alltoall(sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_dtype("Alltoallv", sendbuf, recvbuf, sent)
        super().Alltoallv(sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        check_buffers(self, "Alltoallw", (sendbuf, recvbuf))
        self._join("Alltoallw")
        super().Alltoallw(sendbuf, recvbuf)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_dtype("Reduce_scatter", sendbuf, recvbuf, sent, op=op)
        super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Reduce_scatter_block", sendbuf, recvbuf, (sent, self.size), op=op)
        super().Reduce_scatter_block(sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Scan", sendbuf, recvbuf, (sent, 1), op=op)
        super().Scan(sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        sent = recvbuf if is_in_place(sendbuf) else sendbuf
        self._join_blocks("Exscan", sendbuf, recvbuf, (sent, 1), op=op)
        super().Exscan(sendbuf, recvbuf, op)

    def _join_blocks(
        self,
        name: str,
        sendbuf: Any,
        recvbuf: Any,
        compared: tuple[Any, int],
        root: int = UNKNOWN,
        *,
        op: MPI.Op | None = None,
    ) -> None:
        """Join a collective in which a block of `compared` has the same count and dtype on all ranks."""
        if type(sendbuf) is not ndarray or type(recvbuf) is not ndarray:
            check_buffers(self, name, (sendbuf, recvbuf), root)
        check_writable(recvbuf)
        count, dtype = signature(*compared)
        reduction = UNKNOWN if op is None else id(op)
        self._channel.begin_collective(
            OPERATIONS[name], self.deadline_s, root, count, dtype, reduction, depth=3
        )

    def _join_dtype(
        self,
        name: str,
        sendbuf: Any,
        recvbuf: Any,
        compared: Any,
        root: int = UNKNOWN,
        *,
        op: MPI.Op | None = None,
    ) -> None:
        """Join a collective in which the counts differ from rank to rank."""
        if type(sendbuf) is not ndarray or type(recvbuf) is not ndarray:
            check_buffers(self, name, (sendbuf, recvbuf), root)
        check_writable(recvbuf)
        _, dtype = signature(compared, for_each_rank=True)
        reduction = UNKNOWN if op is None else id(op)
        self._channel.begin_collective(
            OPERATIONS[name], self.deadline_s, root, UNKNOWN, dtype, reduction, depth=3
        )


dumps, loads = MPI.pickle.dumps, MPI.pickle.loads


class WatchedObjects(ChannelComm):
    """Objects are pickled before the rendezvous.

    So the rank that has an object that cannot be pickled raises an error before it joins, and not inside a
    collective in which the other ranks wait for it.
    """

    def barrier(self) -> None:
        self._join("barrier")
        super().Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        sent = dumps(obj) if self.rank == root else None
        self._join("bcast", root)
        return loads(super().bcast(sent, root))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        sent = dumps(sendobj)
        self._join("gather", root)
        parts = super().gather(sent, root)
        return None if parts is None else [loads(part) for part in parts]

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        sent = self._pickled(sendobj) if self.rank == root else None
        self._join("scatter", root)
        return loads(super().scatter(sent, root))

    def allgather(self, sendobj: Any) -> list[Any]:
        sent = dumps(sendobj)
        self._join("allgather")
        return [loads(part) for part in super().allgather(sent)]

    def alltoall(self, sendobj: Any) -> list[Any]:
        sent = self._pickled(sendobj)
        self._join("alltoall")
        return [loads(part) for part in super().alltoall(sent)]

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        sent = dumps(sendobj)
        self._join("reduce", root, id(op))
        parts = super().gather(sent, root)
        return None if parts is None else functools.reduce(op, map(loads, parts))

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._join("allreduce", reduction=id(op))
        return functools.reduce(op, map(loads, super().allgather(sent)))

    def scan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._join("scan", reduction=id(op))
        return functools.reduce(op, map(loads, super().allgather(sent)[: self.rank + 1]))

    def exscan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        sent = dumps(sendobj)
        self._join("exscan", reduction=id(op))
        before = super().allgather(sent)[: self.rank]
        return functools.reduce(op, map(loads, before)) if before else None

    def _pickled(self, sendobj: Any) -> list[bytes]:
        pickles = [dumps(each) for each in sendobj]
        if len(pickles) != self.size:
            raise ValueError(f"expected {self.size} objects, one for each rank, got {len(pickles)}")
        return pickles
