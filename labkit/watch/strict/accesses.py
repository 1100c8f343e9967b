"""Find accesses to a window's memory that may touch the same bytes at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.watch.strict.findings import Category, Finding, add

WRITES = ("Put", "Accumulate", "local store")
ATOMIC = ("Accumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap")


@dataclass(frozen=True)
class Access:
    """An access to bytes `first` to `last` of a rank's window. `began`, `ended`: the origin's clock."""

    operation: str
    target: int
    first: int
    last: int
    place: str
    origin: int
    epoch: str = "fence"  # or "exclusive" or "shared", for a lock
    began: tuple[int, ...] = ()
    ended: int = 0

    def conflicts(self, other: Access) -> bool:
        """Return whether two accesses of one epoch touch the same bytes, and at least one of them writes."""
        writes = self.operation in WRITES or other.operation in WRITES
        both_atomic = self.operation in ATOMIC and other.operation in ATOMIC
        overlaps = self.first < other.last and other.first < self.last
        return self.target == other.target and overlaps and writes and not both_atomic


def report_conflicts(accesses: Sequence[Access], rank: int) -> None:
    """Report conflicting accesses to one rank's window. `rank`: this process's rank in the world."""
    for index, one in enumerate(accesses):
        for other in accesses[:index]:
            if one.conflicts(other) and _may_overlap_in_time(one, other):
                _report(other, one, rank)


def _report(one: Access, other: Access, rank: int) -> None:
    one, other = sorted((one, other), key=lambda access: (access.operation == "local store", access.origin))
    second = (
        f"rank {other.origin} itself changes it"
        if other.operation == "local store"
        else f"{other.operation} of rank {other.origin} ({other.place})"
    )
    add(
        Finding(
            Category.GLOBAL_CONCURRENCY,
            f"{one.operation} of rank {one.origin} and {second} use the same memory of rank "
            f"{one.target}'s window in one epoch",
            one.place,
            rank,
        )
    )


def _may_overlap_in_time(one: Access, other: Access) -> bool:
    if one.epoch == other.epoch == "fence":
        return True
    if one.origin == other.origin:
        return one.began == other.began  # in one epoch
    if "exclusive" in (one.epoch, other.epoch):
        return False  # one after the other
    return not (_is_before(one, other) or _is_before(other, one))


def _is_before(one: Access, other: Access) -> bool:
    """Return whether `one`'s epoch ended before `other`'s began, and the origin of `other` knew it."""
    return bool(one.ended) and bool(other.began) and other.began[one.origin] >= one.ended
