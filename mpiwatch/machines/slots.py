"""Slots in transit: find changes in them, and convert their times to the receiver's clock."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Iterator
from struct import Struct

from mpiwatch.flight_recorder.layout import FlightRecorder, Slot
from mpiwatch.flight_recorder.snapshot import is_in_mpi_call

PART = Struct("!IIH")  # rank, offset in its slot, length of the bytes that follow
BLOCK_BYTES = 128
SLOT_BYTES = ctypes.sizeof(Slot)
STATE_BYTES = Slot.host.offset  # of a slot: the part that waits read, without names, lines and calls
TIMES = [
    getattr(Slot, name).offset for name, *_ in Slot._fields_ if name.endswith(("_since_s", "sampled_s"))
]  # on the writer's clock; 0 for never
_TIME = Struct("=d")


class Changes:
    """Finds what has changed in the slots of a machine's ranks since the last call."""

    def __init__(self, recorder: FlightRecorder, ranks: Collection[int]) -> None:
        self.recorder = recorder
        self.sent = {rank: bytes(SLOT_BYTES) for rank in ranks}

    def take(self) -> bytes:
        """Return the parts that have changed; empty if nothing has."""
        parts = []
        for rank, before in self.sent.items():
            now = raw_slot(self.recorder, rank)
            if now == before:
                continue
            self.sent[rank] = now
            for start in range(0, SLOT_BYTES, BLOCK_BYTES):
                block = now[start : start + BLOCK_BYTES]
                if block != before[start : start + BLOCK_BYTES]:
                    parts.append(PART.pack(rank, start, len(block)) + block)
        return b"".join(parts)


class Mirror:
    """Writes the slots of other machines' ranks to this machine's recorder, with times on its own clock."""

    def __init__(self, recorder: FlightRecorder, ranks: Collection[int]) -> None:
        self.recorder = recorder
        self.raw = {rank: bytearray(raw_slot(recorder, rank)) for rank in ranks}

    def apply(self, parts: bytes, offset_s: float) -> None:
        """Write changed parts; `offset_s` is how far our clock is ahead of the sender's."""
        touched = set()
        for rank, start, block in _split(parts):
            self.raw[rank][start : start + len(block)] = block
            touched.add(rank)
        for rank in touched:
            write_slot(self.recorder, rank, with_times_moved(self.raw[rank], offset_s))


def _split(parts: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(parts):
        rank, start, length = PART.unpack_from(parts, at)
        at += PART.size
        yield rank, start, parts[at : at + length]
        at += length


def states_of(recorder: FlightRecorder, ranks: Iterable[int], now_s: float) -> bytes:
    """Return the states of ranks for another machine, which takes them to be up to date."""
    parts = []
    for rank in ranks:
        state = Slot.from_buffer_copy(raw_slot(recorder, rank))
        if not is_in_mpi_call(state, now_s):  # its watchdog may only not have sampled it lately
            state.mpi_call_since_s = 0.0
        parts.append(PART.pack(rank, 0, STATE_BYTES) + bytes(state)[:STATE_BYTES])
    return b"".join(parts)


def write_states(recorder: FlightRecorder, parts: bytes, offset_s: float) -> None:
    """Write the states of other machines' ranks; see `states_of`."""
    for rank, _, state in _split(parts):
        write_slot(recorder, rank, with_times_moved(bytearray(state), offset_s))


def raw_slot(recorder: FlightRecorder, rank: int) -> bytes:
    """Return a slot's bytes."""
    start = recorder.slot_offset(rank)
    return recorder.memory[start : start + SLOT_BYTES]


def write_slot(recorder: FlightRecorder, rank: int, state: bytes) -> None:
    """Write a slot, or the beginning of one."""
    start = recorder.slot_offset(rank)
    recorder.memory[start : start + len(state)] = state


def with_times_moved(slot: bytearray, offset_s: float) -> bytes:
    """Return a slot, or the beginning of one, with its times moved by `offset_s`."""
    moved = bytearray(slot)
    for at in TIMES:
        if at < len(moved) and (time := _TIME.unpack_from(moved, at)[0]):
            _TIME.pack_into(moved, at, time + offset_s)
    return bytes(moved)
