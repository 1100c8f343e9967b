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
from time import sleep
from types import CodeType, FrameType
from typing import Any, NoReturn
from zlib import crc32

from mpi4py import MPI
from numpy import ndarray

from mpiwatch import modes, packages
from mpiwatch.arguments import (
    BLOCK,
    COUNTS,
    DTYPES,
    FROM_ROOT,
    LAYOUTS,
    REDUCTIONS,
    TYPES,
    UNIFORM,
    check_buffers,
    check_writable,
    is_in_place,
    signature,
)
from mpiwatch.forwarding import add_methods
from mpiwatch.library_calls import RawIntracomm
from mpiwatch.places import describe, file_label, line_number
from mpiwatch.recorder import (
    EPOCH_SHIFT,
    ERROR_BYTES,
    GAVE_UP,
    HASH_MASK,
    HISTORY_CALLS,
    NAME_BYTES,
    NO_RENDEZVOUS,
    NUMBER_MASK,
    NUMBER_SHIFT,
    NUMBERED_CALL,
    Call,
    ReportRequest,
    Slot,
    WaitingIn,
    fit,
    write_members,
)
from mpiwatch.report import OF_ARRAYS, OF_OBJECTS, UNKNOWN, Mismatch, Reason
from mpiwatch.signatures import amounts, misfit_of
from mpiwatch.snapshot import mismatch
from mpiwatch.waiting import DEADLINE_S, CollectiveError, Waiting, Watch, wait_until
from mpiwatch.wrapper import CommWrapper

SETTLE_S = 0.5  # how long a mismatch waits for ranks that are on their way: the report then shows them, too
VISIBLE_S = 0.001  # a thousand times as long as a write takes to reach the other cores
NOTES_KEPT = 1000  # of each communicator
NUMBER_AND_EPOCH = -1 << NUMBER_SHIFT  # mask that clears the rest of a word
NOTE_BYTES = ctypes.sizeof(Call)
_write, _getframe = NUMBERED_CALL.pack_into, sys._getframe

Key = tuple[str, int, int, int, int, int, int]


def has_reached(theirs: int, word: int) -> bool:
    """Tell whether a rank has made a call of this word's number, the same or another one, or a later one."""
    return theirs >= word & NUMBER_AND_EPOCH and theirs >> EPOCH_SHIFT == word >> EPOCH_SHIFT


class Channel:
    """A communicator's row in the flight recorder: one word per rank that identifies the rank's last call.

    In a word (see recorder.py), the number counts the collectives on this communicator, and the epoch counts
    hangs. `row`, `first` and `number`: what `Watch.new_row` has returned. `members`: ranks of the world, by
    rank in the communicator. `waits`: whether a collective begins only when all ranks have called it.
    """

    def __init__(  # noqa: PLR0917
        self,
        watch: Watch,
        row: int,
        first: int,
        number: int,
        comm: MPI.Intracomm,
        members: list[int],
        made_by: str = "",
        waits: bool | None = None,
    ) -> None:
        self.watch, self.row, self.rank, self.members = watch, row, comm.rank, members
        self.is_on_one_machine = len({watch.machines[rank] for rank in members}) == 1
        self.waits = self.is_on_one_machine and (watch.waits if waits is None else waits)
        self.comm = RawIntracomm(comm)  # the MPI library's, without its wrappers
        recorder = watch.recorder
        self.memory, self.words, self.size = recorder.memory, recorder.words, len(members)
        self.first = first  # in words
        self.last = self.first + len(members)
        self.own = self.first + self.rank
        self.low = recorder.words_offset + 8 * self.first  # in bytes
        self.high = self.low + 8 * len(members)
        self.history = recorder.slot_offset(watch.rank) + Slot.history.offset
        self.notes: dict[Key, tuple[CodeType, int, bytes]] = {}
        self.number = number  # of the last call
        self.caller = get_ident()  # the thread that called the last collective
        self.words[self.own] = 0  # of a communicator that had these words before
        recorder.rows[row].made_by = fit(made_by, NAME_BYTES)
        recorder.rows[row].first_number = self.number
        write_members(recorder.rows[row], members)
        watch.channels.append(self)

    def close(self) -> None:
        """Give the row back; called by every rank when all are done with the communicator."""
        self.watch.channels.remove(self)
        if self.rank == 0:
            self.watch.free_row(self.row, self.first, self.number, self.size)

    def begin_collective(  # noqa: PLR0917  (every nanosecond counts)
        self,
        operation: str,
        deadline_s: float,
        root: int = UNKNOWN,
        count: int = UNKNOWN,
        dtype: int = UNKNOWN,
        reduction: int = UNKNOWN,
    ) -> None:
        """Note this call. Raise HangError if the members cannot all make the same one.

        If the channel `waits`, return when all have made it. Otherwise return at once, and report a mismatch
        with a call that another rank has noted. On several machines, the hub compares the notes when the
        ranks are stuck: see machines.py.

        `operation`: the name of the method or schedule; `dtype`: NumPy's number of it; `reduction`: the
        identity of an `MPI.Op`.
        """
        watch = self.watch
        if watch.recorder.head.epoch != watch.epoch:
            watch.check_epoch()  # before other ranks see this call
        frame = outside_wrappers(_getframe(2))  # the caller is always a wrapper's method
        word = self._note(operation, root, count, dtype, reduction, frame)
        if self.waits:
            self._meet(word, deadline_s)
        else:
            watch.slot.joined_word = NO_RENDEZVOUS
            if watch.noted_row != self.row:
                watch.noted_row = self.row  # the report needs the members of the communicator used last
                write_members(watch.slot, self.members)
            if not self.is_on_one_machine:
                watch.check_epoch()
            else:
                difference = self.mismatch(word)
                if difference is not None:
                    self._report(difference, deadline_s)
        if modes.registered is not None:
            modes.registered.note_collective(self, operation, root)

    def _meet(self, word: int, deadline_s: float) -> None:
        """Return when all members have made the call of this word: a rendezvous."""
        memory, low, high, slot = self.memory, self.low, self.high, self.watch.slot
        same = word.to_bytes(8, sys.byteorder) * self.size
        while True:
            if memory[low:high] != same:
                self._wait_for_members(word, same, deadline_s)
            # From here on other ranks may rely on this one. So it checks again after writing `joined_word`
            # whether one has given up. A rank that gives up says so in its word, waits until that is visible,
            # and stays if another rank's `joined_word` shows that it is relied upon.
            slot.joined_word = word
            if memory[low:high] == same or self.all_joined(word):
                return
            slot.joined_word = 0

    def _wait_for_members(self, word: int, same: bytes, deadline_s: float) -> None:
        """Wait until all members have made the call of this word; `same`: their words if it is their last.

        It is a separate method because the lambdas would make `_meet` slower even when no rank has to wait.
        """
        memory, low, high = self.memory, self.low, self.high
        words, first, last = self.words, self.first, self.last
        reached = word & NUMBER_AND_EPOCH
        wait_until(
            lambda: memory[low:high] == same or (min(words[first:last]) >= reached and self.all_joined(word)),
            lambda waited: Rendezvous(self, word, deadline_s),
        )

    def _note(  # noqa: PLR0917
        self, operation: str, root: int, count: int, dtype: int, reduction: int, frame: FrameType
    ) -> int:
        """Write a call to this rank's slot and row; return its word."""
        watch = self.watch
        caller = get_ident()
        if caller != self.caller:
            self._change_caller(caller)
        # A loop makes the same call from the same line again and again, so its note is built once.
        key = (operation, root, count, dtype, reduction, frame.f_lasti, id(frame.f_code))
        _, digest, note = self.notes.get(key) or self._new_note(key, frame)
        self.number = number = (self.number + 1) & NUMBER_MASK
        place = watch.base | number << NUMBER_SHIFT
        calls = watch.calls
        index = calls % HISTORY_CALLS
        if watch.history_notes[index] is note:  # as in most loops: only the number has changed
            watch.history[index].number = place >> NUMBER_SHIFT
        else:
            watch.history_notes[index] = note
            _write(self.memory, self.history + index * NOTE_BYTES, place >> NUMBER_SHIFT, note)
        watch.slot.calls_noted = watch.calls = calls + 1
        self.words[self.own] = word = place | digest
        return word

    def _new_note(self, key: Key, frame: FrameType) -> tuple[CodeType, int, bytes]:
        """Return a call's hash and its note, and keep them."""
        operation, root, count, dtype, reduction, _, _ = key
        code = frame.f_code  # kept, so that no other code can get its identity
        names = operation, DTYPES.get(dtype, ""), REDUCTIONS.get(reduction, "")
        digest = crc32(repr((self.row, root, count, names)).encode()) & HASH_MASK
        fitted = fit(operation, NAME_BYTES), *(name.encode() for name in names[1:])
        line = line_number(code, frame.f_lasti)
        call = Call(0, self.row, root, count, line, *fitted, file_label(code.co_filename))
        if len(self.notes) >= NOTES_KEPT:
            self.notes.clear()
        self.notes[key] = kept_note = code, digest, bytes(call)[8:]  # without its number
        return kept_note

    def _change_caller(self, caller: int) -> None:
        """Note that another thread calls a collective; report it if the last one is still inside of one.

        MPI matches the collectives of a communicator by their order. It has none if two threads call them.
        """
        self.watch.check_process()
        last, self.caller = sys._current_frames().get(self.caller), caller
        while last is not None and packages.is_library(last.f_globals.get("__name__", "")):
            comm = last.f_locals.get("self")
            if last.f_globals["__name__"] == __name__ and getattr(comm, "_channel", None) is self:
                self._report(Reason.THREADS, 0.0)
            last = last.f_back

    def _report(self, why: Reason | Mismatch, deadline_s: float) -> NoReturn:
        self.watch.post_place(_getframe())
        self.watch.slot.waiting_in = WaitingIn.COLLECTIVE
        self.watch.publish(ReportRequest(why, deadline_s, self.members, self.watch.rank))
        self.watch.raise_report()

    def all_joined(self, word: int) -> bool:
        """Tell whether all ranks have made the call of this word, or later ones; false if calls differ."""
        return all(self.has_joined(rank, word) for rank in range(self.size))

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
        words, reached = self.words[self.first : self.last].tolist(), word & NUMBER_AND_EPOCH
        if words.count(word) == len([theirs for theirs in words if theirs >= reached]):
            return None  # the others have made the same call, or are behind
        differences = (self.mismatch_with(rank, word) for rank in range(self.size))
        return next((difference for difference in differences if difference is not None), None)

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
        calls = self.watch.recorder.last_calls(self.members[rank])
        matching = (call for call in reversed(calls) if (call.number, call.row) == (number, self.row))
        return next(map(Call.from_buffer_copy, matching), None)


def caller() -> FrameType:
    """Return the frame that has called a wrapper's method."""
    return outside_wrappers(_getframe(1))


def outside_wrappers(frame: FrameType) -> FrameType:
    """Return this frame, or the first one above it that is not a wrapper's."""
    # Python makes an object for `f_back`, so ask for it only above a wrapper's frame.
    while packages.is_wrapper(frame.f_globals.get("__name__", "")):
        outer = frame.f_back
        if outer is None:
            break
        frame = outer
    return frame


class Rendezvous(Waiting):
    """Waiting for all members of a communicator to make the same call."""

    def __init__(self, channel: Channel, word: int, deadline_s: float) -> None:
        super().__init__(channel.watch, channel.members, deadline_s)
        self.channel, self.word = channel, word

    def announce(self) -> None:
        self.watch.post_place(_getframe())
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

    def mismatch(self, waited: float) -> Mismatch | None:
        difference = self.channel.mismatch(self.word)
        if difference is None or waited > SETTLE_S:
            return difference
        slots = self.watch.recorder.slots
        is_settled = self.channel.all_have_reached(self.word >> NUMBER_SHIFT) and all(
            slots[member].waiting_in == WaitingIn.COLLECTIVE for member in self.members
        )
        return difference if is_settled else None

    def cannot_complete(self) -> bool:
        return any(
            not self.channel.has_joined(rank, self.word) and self.watch.has_ended(member, self.patience_s)
            for rank, member in enumerate(self.members)
        )


class ChannelComm(CommWrapper):
    """A communicator with a channel; without one it is not watched."""

    _channel: Channel | None = None
    deadline_s: float = DEADLINE_S

    @property
    def _members(self) -> list[int]:
        """The ranks of the world that are its members; none if it is not watched."""
        return [] if self._channel is None else self._channel.members

    def _world_rank(self, rank: int) -> int:
        """Return the rank in the world of a member; -1 for any rank, or if that is not known."""
        members = self._members
        return members[rank] if 0 <= rank < len(members) else -1

    def _begin(self, name: str, root: int = UNKNOWN, reduction: object = None) -> None:
        """Begin a collective of which only the name, the root and the reduction are compared."""
        if self._channel is not None:
            operation = UNKNOWN if reduction is None else id(reduction)
            self._channel.begin_collective(name, self.deadline_s, root, reduction=operation)

    @property
    def _compares_amounts(self) -> bool:
        """Whether the ranks compare what they send and expect in collectives with counts for each rank."""
        return self._channel is not None and self._channel.waits

    def _compare_amounts(self, name: str, kwargs: dict[str, Any], root: int) -> None:
        """Raise CollectiveError on all ranks if a rank sends another amount than a rank expects from it.

        All ranks have begun the collective, and none has called the MPI library yet. They tell one another.
        """
        assert self._channel is not None
        if name == "Reduce_scatter":
            mine = kwargs["recvcounts"]
            counts = self._channel.comm.allgather(None if mine is None else [int(count) for count in mine])
            different = next((rank for rank, theirs in enumerate(counts) if theirs != counts[0]), None)
            if different is not None:
                raise CollectiveError(
                    f"{name}: recvcounts must be the same on all ranks; rank 0 has {counts[0]}, "
                    f"rank {different} has {counts[different]}"
                )
            return
        buffers = kwargs["sendbuf"], kwargs["recvbuf"]
        mine = amounts(name, buffers, self.rank, self.size, root)
        misfit = misfit_of(name, self._channel.comm.allgather(mine))
        if misfit:
            raise CollectiveError(misfit)

    def _start_collective(self, name: str, kwargs: dict[str, Any]) -> MPI.Request:
        """Start a non-blocking or persistent collective; `kwargs`: its arguments by name."""
        request: MPI.Request = getattr(super(), name)(**kwargs)
        return request


IN_PLACE = MPI.IN_PLACE


class WatchedCollectives(ChannelComm):
    """Collectives of arrays and objects.

    Of arrays, counts and dtypes are compared before any data moves. Objects are pickled before the
    rendezvous: a rank whose object cannot be pickled raises an error before it joins, and not inside a
    collective in which the other ranks wait for it.
    """

    # These three are short cuts through `_do_collective` for the calls that programs make most often.

    def Barrier(self) -> None:
        if self._channel is not None:
            self._channel.begin_collective("Barrier", self.deadline_s)
        super().Barrier()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        try:
            count, dtype = signature(buf)
            if type(buf) is not ndarray or dtype not in DTYPES:
                check_buffers(self, "Bcast", (buf,))
            if self.rank != root:
                check_writable(buf)
            if self._channel is not None:
                self._channel.begin_collective("Bcast", self.deadline_s, root, count, dtype)
            super().Bcast(buf, root)
        except Exception as error:
            self._note_failed_call("Bcast", error)
            raise

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        try:
            sent = recvbuf if sendbuf is IN_PLACE or sendbuf is None else sendbuf
            if (
                type(sent) is type(recvbuf) is ndarray
                and recvbuf.flags.carray
                and recvbuf.dtype.num in DTYPES
                and (sent is recvbuf or _is_alike(sent, recvbuf))
            ):
                count, dtype = recvbuf.size, recvbuf.dtype.num
            else:
                count, dtype = signature(sent)
                check_writable(recvbuf)
                check_buffers(self, "Allreduce", (sendbuf, recvbuf))
            if self._channel is not None:
                self._channel.begin_collective("Allreduce", self.deadline_s, -1, count, dtype, id(op))
            super().Allreduce(sendbuf, recvbuf, op)
        except Exception as error:
            self._note_failed_call("Allreduce", error)
            raise

    def _do_collective(self, name: str, kwargs: dict[str, Any]) -> None:
        """Do a blocking collective of arrays.

        The ranks compare the count of a block, and the dtype, of the buffer that has blocks of one size; only
        the dtype if counts differ from rank to rank (COUNTS), and neither if dtypes do (TYPES).
        """
        has_counts = ABOUT[name][2]
        root = kwargs.get("root", UNKNOWN)
        try:
            count, dtype = self._checked_signature(name, kwargs, root)
            if self._channel is not None:
                reduction = id(kwargs["op"]) if "op" in kwargs else UNKNOWN
                self._channel.begin_collective(name, self.deadline_s, root, count, dtype, reduction)
            if has_counts and self._compares_amounts:
                self._compare_amounts(name, kwargs, root)
            getattr(super(), name)(*kwargs.values())
        except Exception as error:
            self._note_failed_call(name, error)
            raise

    def _checked_signature(self, name: str, kwargs: dict[str, Any], root: int) -> tuple[int, int]:
        """Check the arguments of a collective; return the count and dtype that all ranks must have."""
        layouts, uniform, has_counts, distributes = ABOUT[name]
        sendbuf, recvbuf = kwargs["sendbuf"], kwargs["recvbuf"]
        is_root = root in (UNKNOWN, self.rank)
        received = recvbuf if is_root or distributes else None  # MPI ignores it on the other ranks
        check_buffers(self, name, (sendbuf, received), root)
        check_writable(received)
        if TYPES in layouts:
            return UNKNOWN, UNKNOWN
        index = uniform[0 if is_root else 1]
        compared = recvbuf if index or is_in_place(sendbuf) else sendbuf
        count, dtype = signature(compared, self.size if layouts[index] == BLOCK else 1, has_counts)
        return (UNKNOWN if has_counts else count), dtype

    def _note_failed_call(self, name: str, error: Exception) -> None:
        """Note an error of a collective: if the program catches it, a report of a later hang shows it."""
        if self._channel is not None and not isinstance(error, CollectiveError):
            text = f"{name} raised {describe(error)}"
            self._channel.watch.slot.failed_call = fit(text, ERROR_BYTES)

    def barrier(self) -> None:
        self._begin("barrier")
        super().Barrier()

    def _do_collective_of_objects(self, name: str, kwargs: dict[str, Any]) -> Any:
        """Do a blocking collective of objects; the ranks themselves, rather than MPI, reduce them."""
        try:
            return self._reduced(name, self._exchanged(name, kwargs), kwargs.get("op"))
        except Exception as error:
            self._note_failed_call(name, error)
            raise

    def _exchanged(self, name: str, kwargs: dict[str, Any]) -> Any:
        """Exchange pickled objects; return what this rank receives: one pickle, a list of them, or None."""
        root = kwargs.get("root", UNKNOWN)
        sent = kwargs["obj"] if name == "bcast" else kwargs["sendobj"]
        if name in ("bcast", "scatter") and self.rank != root:
            sent = None
        else:
            sent = self._pickled(sent) if name in ("scatter", "alltoall") else dumps(sent)
        self._begin(name, root, kwargs.get("op"))
        rooted = [root] if "root" in kwargs else []
        return getattr(super(), CARRIERS.get(name, name))(sent, *rooted)

    def _reduced(self, name: str, received: Any, op: Any) -> Any:
        """Return the object, the objects or their reduction that a collective of objects returns."""
        if received is None:
            return None
        if name in ("bcast", "scatter"):
            return loads(received)
        objects = [loads(part) for part in received]
        if op is None:
            return objects
        first = {"scan": self.rank + 1, "exscan": self.rank}.get(name)
        return functools.reduce(op, objects[:first]) if objects[:first] else None

    def _pickled(self, sendobj: Any) -> list[bytes]:
        pickles = [dumps(item) for item in sendobj]
        if len(pickles) != self.size:
            raise ValueError(f"expected {self.size} objects, one for each rank, got {len(pickles)}")
        return pickles


def _is_alike(sent: ndarray, received: ndarray) -> bool:
    """Return whether `sent` is contiguous and has the size and dtype of `received`."""
    is_as_long = sent.size == received.size
    return is_as_long and sent.flags.c_contiguous and sent.dtype.num == received.dtype.num


dumps, loads = MPI.pickle.dumps, MPI.pickle.loads
# What carries the objects of a reduction.
CARRIERS = {"reduce": "gather", "allreduce": "allgather", "scan": "allgather", "exscan": "allgather"}


def _about(plain: str) -> tuple[Any, Any, bool, bool]:
    """Return a collective's layouts, its uniform buffers, and two properties of it.

    These are whether it has counts for each rank, and whether ranks other than the root receive.
    """
    layouts = LAYOUTS[plain]
    has_counts = COUNTS in layouts or plain == "reduce_scatter"
    return layouts, UNIFORM.get(plain, (0, 0)), has_counts, plain in FROM_ROOT


ABOUT = {name: _about(name.lower()) for name in OF_ARRAYS if LAYOUTS.get(name.lower())}
_OBJECTS = [name for name in OF_OBJECTS if name != "barrier"]
add_methods(WatchedCollectives, _OBJECTS, "_do_collective_of_objects", by_name=True)
add_methods(
    WatchedCollectives,
    [name for name in OF_ARRAYS if name not in ("Barrier", "Bcast", "Allreduce")],
    "_do_collective",
    by_name=True,
)
