"""A rank's request for a report, which it leaves in its slot for the hub."""

from __future__ import annotations

from typing import NamedTuple

from mpiwatch.flight_recorder.layout import Slot
from mpiwatch.flight_recorder.members import read_members, write_members
from mpiwatch.flight_recorder.report import Mismatch, Reason

MISMATCHES = 100  # a Mismatch is stored as its value plus this


class Wish(NamedTuple):
    """A request for a report; the fields are arguments of `take_snapshot`."""

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
    slot.wanted_in = epoch + 1  # written last: it makes the request valid


def read_wish(slot: Slot, epoch: int, size: int) -> Wish | None:
    """Return the report that a rank asks for in this epoch, if any."""
    if slot.wanted_in != epoch + 1:
        return None
    number = slot.wanted_reason
    why = Mismatch(number - MISMATCHES) if number > MISMATCHES else Reason(number)
    return Wish(why, slot.wanted_deadline_s, read_members(slot, size), slot.wanted_reporter)
