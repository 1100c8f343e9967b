"""The log of a recording: a row for each call of a rank, in a file of a fixed size.

A row is written as a call begins and completed as it ends, so the log of a rank that hangs or is killed says
what it was doing. Behind the rows stand texts, each of them once: names, lines, communicators. Nothing here
loads MPI or NumPy.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from itertools import count
from struct import Struct
from typing import Any, NamedTuple

from mpiwatch.recorder import reserve

MAGIC = b"mpitrc01"
EVENTS = 10_000  # that a rank records
TEXT_BYTES = 1 << 20
VALUES_BYTES = 128  # of a buffer that a row has room for
OBJECT = "O"  # in place of a dtype: the values are a text that shows an object


class Kind(IntEnum):
    """What a row is about.

    COMPLETE: a request was seen to be complete, in the call WAIT with the same number. CANCELLED: the same
    for one that was cancelled. A SEND and a RECEIVE with the same number are one call, such as Sendrecv.
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


class Head(NamedTuple):
    """What stands above the rows.

    `clock_offset_s`: what to add to this rank's times to get those of rank 0; `clock_error_s`: how far that
    may be wrong. `own_s`: the time that recording has taken. `events`: how many there were, also those for
    which there was no room.
    """

    magic: bytes
    rank: int
    size: int
    capacity: int
    events: int
    text_bytes: int
    begin_s: float
    end_s: float  # 0 as long as the recording goes on
    clock_offset_s: float
    clock_error_s: float
    own_s: float


HEAD = Struct("=8s5q5d")
_INTEGER, _REAL = Struct("=q"), Struct("=d")
# Where each field of the head stands: 8 bytes each.
_OFFSETS = {name: 8 * index for index, name in enumerate(Head._fields)}

# The fields of a row: number, kind, dtype; operation, communicator, peer, tag, root, line; bytes, items,
# request; begin, end; values.
ROW = Struct(f"=qbc6i3q2d{VALUES_BYTES}s")
_DTYPE_OFFSET = Struct("=qb").size
_PEER_AND_TAG, _PEER_OFFSET = Struct("=2i"), Struct("=qbc2i").size
_BYTES_OFFSET = Struct("=qbc6i").size
_ITEMS_OFFSET, _REQUEST_OFFSET = _BYTES_OFFSET + 8, _BYTES_OFFSET + 16
_END_OFFSET = ROW.size - VALUES_BYTES - _REAL.size
_VALUES_OFFSET = ROW.size - VALUES_BYTES


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
    `end_s`: None if the call has not ended; `has_failed`: it has raised an error then. `request`: the number
    of the request that it starts, or that it waits for first; 0 for none. `line`: where the program made the
    call. Times are those of rank 0's clock, in seconds.
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


class RankLog(NamedTuple):
    """What a rank has recorded. `lost`: how many events there was no room for."""

    rank: int
    size: int
    begin_s: float
    end_s: float | None
    clock_error_s: float
    own_s: float
    lost: int
    events: list[Event]


class LogWriter:
    """The log of this process, at `path`; it exists until `close`, and its file stays."""

    def __init__(self, path: str, rank: int, size: int, begin_s: float, capacity: int = EVENTS) -> None:
        self.path, self.capacity = path, capacity
        self.text_offset = HEAD.size + capacity * ROW.size
        total = self.text_offset + TEXT_BYTES
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            reserve(file, total)  # not left sparse: a full disk is an error here, and not a SIGBUS later
            self.memory = mmap.mmap(file, total)
        finally:
            os.close(file)
        self.texts: dict[str, int] = {"": 0}
        self.text_end = self.text_offset
        self.numbers = count()
        self.is_finished = False
        head = Head(MAGIC, rank, size, capacity, 0, 0, begin_s, 0.0, 0.0, 0.0, 0.0)
        HEAD.pack_into(self.memory, 0, *head)

    def text(self, text: str) -> int:
        """Return the number of a text, which stands in the log from now on; 0 if there is no room for it."""
        number = self.texts.get(text)
        if number is not None:
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
        _INTEGER.pack_into(self.memory, _OFFSETS["events"], number + 1)
        return HEAD.size + number * ROW.size if number < self.capacity else 0

    def end(self, row: int, end_s: float, *, failed: bool = False) -> None:
        """Note when the call of a row has ended, and whether it has `failed`: it has raised an error."""
        if row:
            _REAL.pack_into(self.memory, row + _END_OFFSET, -end_s if failed else end_s)

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
        first = row + _VALUES_OFFSET
        self.memory[row + _DTYPE_OFFSET : row + _DTYPE_OFFSET + 1] = letter
        _INTEGER.pack_into(self.memory, row + _ITEMS_OFFSET, items)
        self.memory[first : first + VALUES_BYTES] = raw.ljust(VALUES_BYTES, b"\0")
        _REAL.pack_into(self.memory, row + _END_OFFSET, end_s)

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

    def close(self) -> None:
        """Give the memory back; the file stays."""
        self.memory.close()


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
    events = list(_events(content, head, rows, texts))
    end_s = head.end_s + head.clock_offset_s if head.end_s else None
    begin_s = head.begin_s + head.clock_offset_s
    lost = head.events - rows
    return RankLog(head.rank, head.size, begin_s, end_s, head.clock_error_s, head.own_s, lost, events)


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
            nbytes,
            items,
            request,
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
        )


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
