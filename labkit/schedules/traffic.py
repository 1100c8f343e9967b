"""The traffic of a schedule, counted by walking through its transfers, never by formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkit.schedules.schedule import Round, Schedule, chunk_bounds


@dataclass(frozen=True)
class Traffic:
    """The messages of one call, and the bytes that each rank sends and receives.

    Shapes: sent, received (ranks,), int64, in bytes.
    """

    messages: int
    sent: np.ndarray
    received: np.ndarray

    @property
    def total(self) -> int:
        """Return the bytes that all ranks send together."""
        return int(self.sent.sum())

    @property
    def busiest(self) -> int:
        """Return the bytes that the busiest rank sends and receives, added up."""
        return int((self.sent + self.received).max())


def count_traffic(schedule: Schedule, nbytes: int, itemsize: int = 4) -> Traffic:
    """Count the traffic of one call on an array of `nbytes` bytes, in values of `itemsize` bytes.

    Raise ValueError if `nbytes` is not a multiple of `itemsize`.
    """
    messages, sent, received = 0, np.zeros(schedule.p), np.zeros(schedule.p)
    for round_, sizes in rounds_with_sizes(schedule, nbytes, itemsize):
        messages += len(round_)
        sent += np.bincount(round_.source, sizes, schedule.p)
        received += np.bincount(round_.dest, sizes, schedule.p)
    return Traffic(messages, sent.astype(np.int64), received.astype(np.int64))


def rounds_with_sizes(
    schedule: Schedule, nbytes: int, itemsize: int = 4
) -> Iterator[tuple[Round, np.ndarray]]:
    """Yield each round and the sizes of its transfers in bytes, (transfers,), int64.

    Leave out empty transfers, which occur where there are fewer values than chunks: they send no message.
    """
    if nbytes % itemsize:
        raise ValueError(f"expected a multiple of {itemsize} bytes (one value), got {nbytes} bytes")
    ends = chunk_bounds(nbytes // itemsize, schedule.chunks) * itemsize
    for round_ in schedule:
        sizes = ends[round_.stop] - ends[round_.first]
        filled = sizes > 0
        if filled.all():
            yield round_, sizes
        else:
            yield Round(*(column[filled] for column in vars(round_).values())), sizes[filled]
