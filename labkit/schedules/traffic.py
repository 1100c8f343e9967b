"""What a schedule sends: counted by walking through its transfers, never by formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkit.schedules.schedule import Round, Schedule, bounds


@dataclass(frozen=True)
class Traffic:
    """What one call sends. Shapes: sent, received (ranks,), int64, in bytes."""

    messages: int
    sent: np.ndarray
    received: np.ndarray

    @property
    def total(self) -> int:
        """All bytes sent."""
        return int(self.sent.sum())

    @property
    def busiest(self) -> int:
        """The bytes of the rank that sends and receives most, both together."""
        return int((self.sent + self.received).max())


def traffic(schedule: Schedule, nbytes: int, itemsize: int = 4) -> Traffic:
    """Count what the schedule sends for an array of `nbytes` bytes, in values of `itemsize` bytes."""
    messages, sent, received = 0, np.zeros(schedule.p), np.zeros(schedule.p)
    for one, size in loads(schedule, nbytes, itemsize):
        messages += len(one)
        sent += np.bincount(one.source, size, schedule.p)
        received += np.bincount(one.dest, size, schedule.p)
    return Traffic(messages, sent.astype(np.int64), received.astype(np.int64))


def loads(schedule: Schedule, nbytes: int, itemsize: int = 4) -> Iterator[tuple[Round, np.ndarray]]:
    """Yield each round and the bytes of its transfers (transfers,), int64.

    Transfers without a value, as there are with fewer values than pieces, are no messages and are left out.
    """
    if nbytes % itemsize:
        raise ValueError(f"{nbytes} bytes are no whole number of values of {itemsize} bytes")
    ends = bounds(nbytes // itemsize, schedule.chunks) * itemsize
    for one in schedule:
        size = ends[one.stop] - ends[one.first]
        there = size > 0
        if there.all():
            yield one, size
        else:
            yield Round(*(column[there] for column in vars(one).values())), size[there]
