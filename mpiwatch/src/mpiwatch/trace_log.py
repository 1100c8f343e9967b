"""The log of a recording: a row for each call of a rank, in a file of a fixed size.

A row is written as a call begins and completed as it ends, so the log of a rank that hangs or is killed says
what it was doing. Behind the rows stand texts, each of them once: names, lines, communicators. Nothing here
loads MPI or NumPy.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator
from enum import IntEnum
from itertools import count
from struct import Struct
from typing import Any, NamedTuple

from mpiwatch.recorder import reserve

MAGIC = b"mpitrc02"
EVENTS = 10_000  # that a rank records
TEXT_BYTES = 1 << 20
VALUES_BYTES = 128  # of a buffer that a row has room for
OBJECT = "O"  # in place of a dtype: the values are a text that shows an object


class Kind(IntEnum):
    """What a row is about.

    COMPLETE: a request was seen to be complete, in the call WAIT with the same number, or in a test, which
    has no row. CANCELLED: the same for a request that was cancelled. A SEND and a RECEIVE with the same
    number are one call, such as Sendrecv. RAISED: the rank's program has ended with an error. PART: the rows
    below belong to the part of the recording that `operation` names; an empty name stands for the recording
    itself.
    """

    SEND = 1
    RECEIVE = 2
    START_SEND = 3
    START_RECEIVE = 4
    COLLECTIVE = 5
    START_COLLECTIVE = 6
    WAIT = 7
    COMPLETE = 8
    CANCELLED = 9
    PROBE = 10
    RAISED = 11
    PART = 12


STARTS = Kind.START_SEND, Kind.START_RECEIVE, Kind.START_COLLECTIVE
ENDS = Kind.WAIT, Kind.COMPLETE, Kind.CANCELLED


class Head(NamedTuple):
    """What stands above the rows.

    `clock_offset_s`: what to add to this rank's times to get those of rank 0; `clock_error_s`: how far that
    may be wrong. `own_s`: the time that recording has taken. `events`: how many there were, also those for
    which there was no room. `machine`: the number of the rank's machine; ranks of one machine share a clock.
    """

    magic: bytes
    rank: int
    size: int
    capacity: int
    events: int
    text_bytes: int
    machine: int
    begin_s: float
    end_s: float  # 0 as long as the recording goes on
    clock_offset_s: float
    clock_error_s: float
    own_s: float


HEAD = Struct("=8s6q5d")
_INTEGER, _REAL = Struct("=q"), Struct("=d")
# Where each field of the head stands: 8 bytes each.
_OFFSETS = {name: 8 * index for index, name in enumerate(Head._fields)}
_EVENTS_OFFSET = _OFFSETS["events"]

# The fields of a row: number, kind, dtype; operation, communicator, peer, tag, root, line, error; bytes,
# items, request, address, offset, whole; begin, end; values.
ROW = Struct(f"=qbc7i6q2d{VALUES_BYTES}s")
_DTYPE, _DTYPE_OFFSET = Struct("=c"), Struct("=qb").size
_PEER_AND_TAG, _PEER_OFFSET = Struct("=2i"), Struct("=qbc2i").size
_NUMBER_OF_TEXT, _ERROR_OFFSET = Struct("=i"), Struct("=qbc6i").size
_BYTES_OFFSET = Struct("=qbc7i").size
_ITEMS_OFFSET, _REQUEST_OFFSET = _BYTES_OFFSET + 8, _BYTES_OFFSET + 16
_END_AND_VALUES = Struct(f"=d{VALUES_BYTES}s")
_END_OFFSET = ROW.size - _END_AND_VALUES.size
_HEAD_BYTES, _ROW_BYTES = HEAD.size, ROW.size


class Values(NamedTuple):
    """The first values of a buffer, or a text that shows an object; `items`: how many values there were."""

    items: int
    first: tuple[Any, ...]
    text: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether these are all values."""
        return len(self.first) == self.items


class Event(NamedTuple):
    """A row: a call of this rank, or a part of one.

    `peer` and `root` are ranks of the world; -1 stands for any, or for none. `nbytes`: -1 if not known.
    `end_s`: None if the call has not ended; `has_failed`: it has raised an error then, whose first words are
    `error`; they are empty for a call that was ended because it could never return. `request`: the number of
    the request that it starts, or that it waits for first; 0 for none. `line`: where the program made the
    call. `address`: where the array is in this rank's memory that is sent or received into; 0 if not known.
    It begins `offset` bytes behind the start of the array that owns the memory, which has `whole` bytes.
    `is_of_send`: of a wait or the end of a request, whether that is a send's.
    Times are those of rank 0's clock, in seconds.
    """

    rank: int
    number: int
    kind: Kind
    operation: str
    comm: str
    peer: int
    tag: int
    root: int
    nbytes: int
    begin_s: float
    end_s: float | None
    has_failed: bool
    request: int
    line: str
    values: Values | None
    error: str = ""
    address: int = 0
    offset: int = 0
    whole: int = 0
    is_of_send: bool = False

    @property
    def never_ended(self) -> bool:
        """Return whether the call has not returned: it was ended because it never could, or was killed."""
        return self.end_s is None or (self.has_failed and not self.error)


class Part(NamedTuple):
    """A part of a recording that is not the program's own, by its name."""

    name: str
    events: list[Event]


class RankLog(NamedTuple):
    """What a rank has recorded. `lost`: how many events there was no room for.

    `machine`: the number of its machine; ranks of one machine share a clock.
    """

    rank: int
    size: int
    begin_s: float
    end_s: float | None
    clock_error_s: float
    own_s: float
    lost: int
    events: list[Event]
    machine: int = 0
    parts: tuple[Part, ...] = ()

    def moved(self, shift_s: float) -> RankLog:
        """Return the same log on a clock that shows so much more."""
        if not shift_s:
            return self
        parts = tuple(part._replace(events=_moved(part.events, shift_s)) for part in self.parts)
        end_s = None if self.end_s is None else self.end_s + shift_s
        begin_s, events = self.begin_s + shift_s, _moved(self.events, shift_s)
        return self._replace(begin_s=begin_s, end_s=end_s, events=events, parts=parts)


def _moved(events: list[Event], shift_s: float) -> list[Event]:
    return [
        event._replace(
            begin_s=event.begin_s + shift_s, end_s=None if event.end_s is None else event.end_s + shift_s
        )
        for event in events
    ]


class LogWriter:
    """The log of this process, at `path`; its file stays.

    Threads may be inside calls when a recording ends: what they write then is not in its content. The memory
    is given back with the last of these calls.
    """

    def __init__(  # noqa: PLR0917
        self, path: str, rank: int, size: int, begin_s: float, capacity: int = EVENTS, machine: int = 0
    ) -> None:
        self.path, self.capacity = path, capacity
        self.text_offset = HEAD.size + capacity * ROW.size
        total = self.text_offset + TEXT_BYTES
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            reserve(file, total)  # not left sparse: a full disk is an error here, and not a SIGBUS later
            self.memory = mmap.mmap(file, total)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(file)
        self.adding = threading.Lock()  # several threads may add texts
        self.texts: dict[str, int] = {"": 0}
        self.text_end = self.text_offset
        self.numbers = count()
        self.is_finished = False
        head = Head(MAGIC, rank, size, capacity, 0, 0, machine, begin_s, 0.0, 0.0, 0.0, 0.0)
        HEAD.pack_into(self.memory, 0, *head)

    def text(self, text: str) -> int:
        """Return the number of a text, which stands in the log from now on; 0 if there is no room for it."""
        number = self.texts.get(text)
        if number is not None:
            return number
        with self.adding:
            return self._added(text)

    def _added(self, text: str) -> int:
        number = self.texts.get(text)
        if number is not None:  # another thread has just added it
            return number
        encoded = text.encode(errors="backslashreplace") + b"\0"
        end = self.text_end + len(encoded)
        if end > self.text_offset + TEXT_BYTES:
            return 0
        self.memory[self.text_end : end] = encoded
        self.text_end = end
        self.texts[text] = len(self.texts)
        _INTEGER.pack_into(self.memory, _OFFSETS["text_bytes"], end - self.text_offset)
        return self.texts[text]

    def row(self) -> int:
        """Return the offset of a new row; 0 if there is no room for more, which is counted."""
        if self.is_finished:
            return 0
        number = next(self.numbers)
        _INTEGER.pack_into(self.memory, _EVENTS_OFFSET, number + 1)
        return _HEAD_BYTES + number * _ROW_BYTES if number < self.capacity else 0

    def end(self, row: int, end_s: float) -> None:
        """Note when the call of a row has ended."""
        if row:
            _REAL.pack_into(self.memory, row + _END_OFFSET, end_s)

    def fail(self, row: int, end_s: float, error: str) -> None:
        """Note when the call of a row has raised an error, and its first words; empty: see `Event`."""
        if row:
            _NUMBER_OF_TEXT.pack_into(self.memory, row + _ERROR_OFFSET, self.text(error))
            _REAL.pack_into(self.memory, row + _END_OFFSET, -end_s)

    def note(self, kind: Kind, number: int, operation: str, line: str, now_s: float, error: str = "") -> None:  # noqa: PLR0917
        """Write a row that is about no call."""
        row = self.row()
        if row:
            texts = self.text(operation), 0, -1, -1, -1, self.text(line), self.text(error)
            ROW.pack_into(self.memory, row, number, kind, b"\0", *texts, -1, 0, 0, 0, 0, 0, now_s, now_s, b"")

    def request(self, row: int, number: int) -> None:
        """Note the number of the request that a call has started."""
        if row:
            _INTEGER.pack_into(self.memory, row + _REQUEST_OFFSET, number)

    def message(  # noqa: PLR0917
        self, row: int, peer: int, tag: int, nbytes: int, end_s: float, values: tuple[bytes, int, bytes]
    ) -> None:
        """Complete the row of a receive with what has come."""
        _PEER_AND_TAG.pack_into(self.memory, row + _PEER_OFFSET, peer, tag)
        _INTEGER.pack_into(self.memory, row + _BYTES_OFFSET, nbytes)
        self.values(row, end_s, values)

    def values(self, row: int, end_s: float, values: tuple[bytes, int, bytes]) -> None:
        """Complete the row of a call after which a buffer holds these values."""
        letter, items, raw = values
        _DTYPE.pack_into(self.memory, row + _DTYPE_OFFSET, letter)
        _INTEGER.pack_into(self.memory, row + _ITEMS_OFFSET, items)
        _END_AND_VALUES.pack_into(self.memory, row + _END_OFFSET, end_s, raw)

    def set_clock(self, offset_s: float, error_s: float) -> None:
        """Note what to add to this rank's times, and how far that may be wrong."""
        _REAL.pack_into(self.memory, _OFFSETS["clock_offset_s"], offset_s)
        _REAL.pack_into(self.memory, _OFFSETS["clock_error_s"], error_s)

    def begin(self, begin_s: float) -> None:
        """Note that the recording begins only now."""
        _REAL.pack_into(self.memory, _OFFSETS["begin_s"], begin_s)

    def finish(self, end_s: float, own_s: float) -> None:
        """Note when the recording has ended, and how long recording itself has taken; write no more rows."""
        if self.is_finished:
            return
        self.is_finished = True
        _REAL.pack_into(self.memory, _OFFSETS["end_s"], end_s)
        _REAL.pack_into(self.memory, _OFFSETS["own_s"], own_s)

    def content(self) -> bytes:
        """Return the part of the log that is in use, for `read`."""
        head = Head(*HEAD.unpack_from(self.memory, 0))
        used = HEAD.size + min(head.events, head.capacity) * ROW.size
        texts = bytes(self.memory[self.text_offset : self.text_offset + head.text_bytes])
        # Without the rows that are not in use, so that little has to be sent.
        return HEAD.pack(*head) + bytes(self.memory[HEAD.size : used]) + texts


def end_log(path: str, end_s: float) -> None:
    """Note in the log of a rank that was ended when this was, on the rank's own clock."""
    with open(path, "r+b") as file:
        start = file.read(HEAD.size)
        if len(start) < HEAD.size:  # the disk was full when the log was made
            return
        head = Head(*HEAD.unpack(start))
        if head.magic == MAGIC and not head.end_s:
            file.seek(_OFFSETS["end_s"])
            file.write(_REAL.pack(end_s))


def read_file(path: str) -> RankLog:
    """Return what a rank has recorded in this file, also while it goes on or after it was killed.

    Raise OSError or ValueError if there is no such log.
    """
    with open(path, "rb") as file:
        whole = file.read()
    if len(whole) < HEAD.size:
        raise ValueError(f"{path} is no log of a rank: it has {len(whole)} bytes")
    head = Head(*HEAD.unpack_from(whole, 0))
    used = HEAD.size + min(head.events, head.capacity) * ROW.size
    texts = HEAD.size + head.capacity * ROW.size
    return read(whole[:used] + whole[texts : texts + head.text_bytes])


def read(content: bytes) -> RankLog:
    """Return what a rank has recorded, from the `content` of its log. Raise ValueError if it is none."""
    if len(content) < HEAD.size or not content.startswith(MAGIC):
        raise ValueError("expected the log of a rank that mpiwatch has recorded, got something else")
    head = Head(*HEAD.unpack_from(content, 0))
    rows = min(head.events, head.capacity)
    first_text = HEAD.size + rows * ROW.size
    texts = ["", *content[first_text : first_text + head.text_bytes].decode(errors="replace").split("\0")]
    by_part: dict[str, list[Event]] = {"": []}
    name = ""
    for event in _events(content, head, rows, texts):
        if event.kind is Kind.PART:
            name = event.operation
            by_part.setdefault(name, [])  # also if it has no events
        else:
            by_part.setdefault(name, []).append(event)
    events = _with_sends(by_part.pop(""))
    parts = tuple(Part(name, _with_sends(events_of_part)) for name, events_of_part in by_part.items())
    end_s = head.end_s + head.clock_offset_s if head.end_s else None
    begin_s = head.begin_s + head.clock_offset_s
    lost = head.events - rows
    return RankLog(
        rank=head.rank,
        size=head.size,
        begin_s=begin_s,
        end_s=end_s,
        clock_error_s=head.clock_error_s,
        own_s=head.own_s,
        lost=lost,
        events=events,
        machine=head.machine,
        parts=parts,
    )


def _events(content: bytes, head: Head, rows: int, texts: list[str]) -> Iterator[Event]:
    for index in range(rows):
        row = ROW.unpack_from(content, HEAD.size + index * ROW.size)
        (
            number,
            kind,
            dtype,
            operation,
            comm,
            peer,
            tag,
            root,
            line,
            error,
            nbytes,
            items,
            request,
            address,
            offset,
            whole,
            begin,
            end,
            raw,
        ) = row
        if not kind:  # the rank was killed while it wrote this row
            continue
        yield Event(
            rank=head.rank,
            number=number,
            kind=Kind(kind),
            operation=_text(texts, operation),
            comm=_text(texts, comm),
            peer=peer,
            tag=tag,
            root=root,
            nbytes=nbytes,
            begin_s=begin + head.clock_offset_s,
            end_s=abs(end) + head.clock_offset_s if end else None,
            has_failed=end < 0,
            request=request,
            line=_text(texts, line),
            values=_values(dtype.decode("latin1"), items, raw),
            error=_text(texts, error),
            address=address,
            offset=offset,
            whole=whole,
        )


def _with_sends(events: list[Event]) -> list[Event]:
    """Return the events; those that are about the request of a send say so."""
    starts = {event.request: event.kind for event in events if event.kind in STARTS}
    return [
        event._replace(is_of_send=True)
        if event.kind in ENDS and starts.get(event.request) is Kind.START_SEND
        else event
        for event in events
    ]


def _text(texts: list[str], number: int) -> str:
    return texts[number] if number < len(texts) else ""


def _values(dtype: str, items: int, raw: bytes) -> Values | None:
    """Return the values in a row: NumPy's letter of the dtype, the number of items, the first bytes."""
    if dtype == "\0":
        return None
    if dtype == OBJECT:
        return Values(1, (), raw.rstrip(b"\0").decode(errors="ignore"))
    size = struct.calcsize(f"={dtype}")
    stored = min(items, VALUES_BYTES // size)
    return Values(items, struct.unpack_from(f"={stored}{dtype}", raw))
