"""Store the members of a communicator in a slot: a bit for each rank of the world."""

from __future__ import annotations

from collections.abc import Iterable

from mpiwatch.flight_recorder.layout import MEMBERS_BYTES, Slot


def write_members(slot: Slot, members: Iterable[int]) -> None:
    """Store the members of a communicator, as ranks of the world."""
    bits = sum(1 << rank for rank in set(members))
    slot.members[:] = bits.to_bytes(max(MEMBERS_BYTES, bits.bit_length() // 8 + 1), "little")[:MEMBERS_BYTES]


def read_members(slot: Slot, size: int) -> list[int]:
    """Return the ranks that `write_members` stored; all ranks if it stored none or had too little room."""
    bits = int.from_bytes(bytes(slot.members), "little")
    members = [rank for rank in range(size) if bits >> rank & 1]
    return members if members and size <= 8 * MEMBERS_BYTES else list(range(size))
