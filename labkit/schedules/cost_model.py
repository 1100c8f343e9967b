"""The cost of a schedule in the α–β–γ model, computed from its transfers.

Source of the model: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations
in MPICH, IJHPCA 19(1), 2005, 49–66.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from labkit.schedules.schedule import Round, Schedule
from labkit.schedules.traffic import rounds_with_sizes


class CostModel(NamedTuple):
    """Latency `alpha` (s/message), inverse bandwidth `beta` (s/byte), reduction cost `gamma` (s/byte)."""

    alpha: float
    beta: float
    gamma: float = 0.0


def cost(schedule: Schedule, nbytes: int, model: CostModel, itemsize: int = 4) -> float:
    """Return the time that the schedule takes on an array of `nbytes` bytes, in seconds.

    Links are full duplex: a rank sends and receives at the same time, but only one message in each
    direction; it then reduces the values that it received. A round takes as long as its slowest rank, and the
    rounds follow one another. Raise ValueError if `nbytes` is not a multiple of `itemsize`.
    """
    return float(np.dot(cost_terms(schedule, nbytes, model, itemsize), model))


def cost_terms(schedule: Schedule, nbytes: int, model: CostModel, itemsize: int = 4) -> np.ndarray:
    """Return the factors of α, β and γ: messages, bytes sent and bytes reduced. Shape: (3,).

    In each round, count those of the slowest rank according to `model`; add up the rounds.
    """
    total = np.zeros(3)
    for round_, sizes in rounds_with_sizes(schedule, nbytes, itemsize):
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
