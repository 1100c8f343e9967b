"""The traffic of a schedule, and its cost in the α–β–γ model, counted by walking through its transfers.

Source of the model: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations
in MPICH, IJHPCA 19(1), 2005, 49–66.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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


ITEMSIZE = 4  # bytes of a value, a float32


def count_traffic(schedule: Schedule, nbytes: int) -> Traffic:
    """Count the traffic of one call on a float32 array of `nbytes` bytes.

    Raise ValueError if `nbytes` is not a multiple of 4.
    """
    messages, sent, received = 0, np.zeros(schedule.p), np.zeros(schedule.p)
    for round_, sizes in rounds_with_sizes(schedule, nbytes):
        messages += len(round_)
        sent += np.bincount(round_.source, sizes, schedule.p)
        received += np.bincount(round_.dest, sizes, schedule.p)
    return Traffic(messages, sent.astype(np.int64), received.astype(np.int64))


def rounds_with_sizes(schedule: Schedule, nbytes: int) -> Iterator[tuple[Round, np.ndarray]]:
    """Yield each round and the sizes of its transfers in bytes, (transfers,), int64.

    Leave out empty transfers, which occur where there are fewer values than chunks: they send no message.
    """
    if nbytes % ITEMSIZE:
        raise ValueError(f"expected a multiple of {ITEMSIZE} bytes (one value), got {nbytes} bytes")
    ends = chunk_bounds(nbytes // ITEMSIZE, schedule.chunks) * ITEMSIZE
    for round_ in schedule:
        sizes = ends[round_.stop] - ends[round_.first]
        filled = sizes > 0
        if filled.all():
            yield round_, sizes
        else:
            yield Round(*(column[filled] for column in vars(round_).values())), sizes[filled]


class CostModel(NamedTuple):
    """Latency `alpha` (s/message), inverse bandwidth `beta` (s/byte), reduction cost `gamma` (s/byte)."""

    alpha: float
    beta: float
    gamma: float = 0.0


def cost(schedule: Schedule, nbytes: int, model: CostModel) -> float:
    """Return the time that the schedule takes on a float32 array of `nbytes` bytes, in seconds.

    Links are full duplex: a rank sends and receives at the same time, but only one message in each
    direction; it then reduces the values that it received. A round takes as long as its slowest rank, and the
    rounds follow one another. Raise ValueError if `nbytes` is not a multiple of 4.
    """
    return float(np.dot(cost_terms(schedule, nbytes, model), model))


def cost_terms(schedule: Schedule, nbytes: int, model: CostModel) -> np.ndarray:
    """Return the factors of α, β and γ: messages, bytes sent and bytes reduced. Shape: (3,).

    In each round, count those of the slowest rank according to `model`; add up the rounds.
    """
    total = np.zeros(3)
    for round_, sizes in rounds_with_sizes(schedule, nbytes):
        if len(round_):
            total += _slowest_rank_terms(round_, sizes, schedule.p, model)
    return total


def _slowest_rank_terms(round_: Round, sizes: np.ndarray, p: int, model: CostModel) -> np.ndarray:
    """Return messages, bytes sent and bytes reduced of the round's slowest rank. Shape: (3,)."""
    alpha, beta, gamma = model
    seconds, reduced = alpha + beta * sizes, sizes * round_.reduce
    send, receive = np.bincount(round_.source, seconds, p), np.bincount(round_.dest, seconds, p)
    reduction = np.bincount(round_.dest, gamma * reduced, p)
    slowest = int(np.argmax(np.maximum(send, receive) + reduction))
    busier_end = round_.source if send[slowest] > receive[slowest] else round_.dest
    on_path = busier_end == slowest
    return np.array([on_path.sum(), sizes[on_path].sum(), reduced[round_.dest == slowest].sum()], float)
