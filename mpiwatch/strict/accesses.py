"""Find accesses to a window's memory that may touch the same bytes at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from mpiwatch.strict.findings import Category, Finding, add
from mpiwatch.strict.objects import RawDatatype, free_types

WRITES = ("Put", "Accumulate", "local store")
ATOMIC = ("Accumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap")


MOST_PARTS = 10_000

Parts = tuple[tuple[int, int], ...]


@dataclass
class Access:
    """An access to `parts` of a rank's window: the first byte of each, and the one after its last.

    `began`, `ended`: when the program made it and completed it, on the origin's clock.
    """

    operation: str
    target: int
    parts: Parts
    place: str
    origin: int
    epoch: str = "fence"  # or "exclusive" or "shared", for a lock
    began: tuple[int, ...] = ()
    ended: int = 0

    def conflicts(self, other: Access) -> bool:
        """Return whether two accesses of one epoch touch the same bytes, and at least one of them writes."""
        writes = self.operation in WRITES or other.operation in WRITES
        both_atomic = self.operation in ATOMIC and other.operation in ATOMIC
        may_conflict = self.target == other.target and writes and not both_atomic
        return may_conflict and overlap(self.parts, other.parts)


def overlap(some: Parts, others: Parts) -> bool:
    """Return whether a part of `some` and one of `others` have bytes in common; each is in order."""
    i = j = 0
    while i < len(some) and j < len(others):
        if some[i][0] < others[j][1] and others[j][0] < some[i][1]:
            return True
        if some[i][1] <= others[j][1]:
            i += 1
        else:
            j += 1
    return False


def parts_of(datatype: MPI.Datatype, count: int, first: int) -> Parts:
    """Return the bytes of `count` elements of a datatype, the first of them at byte `first`.

    Empty if they are too many parts to compare.
    """
    size, extent = datatype.Get_size(), datatype.Get_extent()[1]
    lowest, span = datatype.Get_true_extent()
    at = first + lowest
    if size == extent == span or not size or not count:
        return ((at, at + count * size),)
    # MPI itself marks the bytes: it unpacks ones into zeros.
    marks = np.zeros(span, np.uint8)
    moved = RawDatatype.Create_hindexed(datatype, [1], [-lowest])
    whole = RawDatatype.Create_resized(moved, 0, span).Commit()
    RawDatatype.Unpack(whole, np.full(size, 0xFF, np.uint8), 0, marks, MPI.COMM_SELF)
    free_types([moved, whole])
    edges = np.flatnonzero(np.diff(marks != 0, prepend=False, append=False)).reshape(-1, 2).tolist()
    if len(edges) * count > MOST_PARTS:
        return ()
    return tuple(
        sorted((at + i * extent + begin, at + i * extent + end) for i in range(count) for begin, end in edges)
    )


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
    if one.origin != other.origin and "exclusive" in (one.epoch, other.epoch):
        return False  # one after the other
    return not (_is_before(one, other) or _is_before(other, one))


def _is_before(one: Access, other: Access) -> bool:
    """Return whether `one`'s epoch ended before `other`'s began, and the origin of `other` knew it."""
    return bool(one.ended) and bool(other.began) and other.began[one.origin] >= one.ended
