"""What a rank asks of the hub, in its slot: a report, and about what."""

from __future__ import annotations

from typing import NamedTuple

from labkit.watch.flight_recorder.layout import Slot
from labkit.watch.flight_recorder.members import read_members, write_members
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
