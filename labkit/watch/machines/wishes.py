"""What a rank asks of the hub, in its slot: a report, and about what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from labkit.watch.flight_recorder.layout import MEMBERS_BYTES, Slot
from labkit.watch.flight_recorder.report import Mismatch, Reason

MISMATCHES = 100  # the number of a Mismatch is this and its value


class Wish(NamedTuple):
    """A report that a rank wants; the arguments are those of `take_snapshot`."""

    why: Reason | Mismatch
    deadline_s: float
    members: list[int]
    reporter: int


def write_wish(slot: Slot, epoch: int, wish: Wish) -> None:
    """Ask for a report in this epoch."""
    slot.wanted_deadline_s = wish.deadline_s
    slot.wanted_reporter = wish.reporter
    slot.wanted_reason = wish.why.value + MISMATCHES * isinstance(wish.why, Mismatch)
    write_members(slot, wish.members)
    slot.wanted_in = epoch + 1  # last: now it counts


def read_wish(slot: Slot, epoch: int, size: int) -> Wish | None:
    """Return the report that a rank wants in this epoch, if it wants one."""
    if slot.wanted_in != epoch + 1:
        return None
    number = slot.wanted_reason
    why = Mismatch(number - MISMATCHES) if number > MISMATCHES else Reason(number)
    return Wish(why, slot.wanted_deadline_s, read_members(slot, size), slot.wanted_reporter)


def write_members(slot: Slot, members: Iterable[int]) -> None:
    """Note the ranks of the world that a communicator has."""
    bits = sum(1 << rank for rank in set(members))
    slot.members[:] = bits.to_bytes(max(MEMBERS_BYTES, bits.bit_length() // 8 + 1), "little")[:MEMBERS_BYTES]


def read_members(slot: Slot, size: int) -> list[int]:
    """Return the ranks that `write_members` noted; all if there are more than there is room for, or none."""
    bits = int.from_bytes(bytes(slot.members), "little")
    members = [rank for rank in range(size) if bits >> rank & 1]
    return members if members and size <= 8 * MEMBERS_BYTES else list(range(size))
