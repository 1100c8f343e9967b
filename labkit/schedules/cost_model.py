"""What a schedule costs in the α–β–γ model, read off its transfers.

Source of the model: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations
in MPICH, IJHPCA 19(1), 2005, 49–66.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from labkit.schedules.schedule import Round, Schedule
from labkit.schedules.traffic import loads


class CostModel(NamedTuple):
    """Seconds: `alpha` per message, `beta` per byte sent, `gamma` per byte added."""

    alpha: float
    beta: float
    gamma: float = 0.0


class CostTerms(NamedTuple):
    """What a schedule makes wait for: messages, bytes and added bytes one after the other."""

    messages: float
    sent: float
    added: float

    def at(self, rates: CostModel) -> float:
        """Return the time at these rates, in seconds."""
        return float(np.dot(self, rates))


def cost(schedule: Schedule, nbytes: int, rates: CostModel, itemsize: int = 4) -> float:
    """Return the time of the schedule on an array of `nbytes` bytes, in seconds.

    A rank can send and receive at once, but one message at a time each way; then it adds what came. A round
    takes as long as its slowest rank, and the rounds add up.
    """
    return cost_terms(schedule, nbytes, rates, itemsize).at(rates)


def cost_terms(schedule: Schedule, nbytes: int, rates: CostModel, itemsize: int = 4) -> CostTerms:
    """Return what the slowest rank at these rates does in each round, added up over the rounds."""
    total = np.zeros(3)
    for one, size in loads(schedule, nbytes, itemsize):
        if len(one):
            total += _slowest(one, size, schedule.p, rates)
    return CostTerms(*total.tolist())


def _slowest(one: Round, size: np.ndarray, p: int, rates: CostModel) -> np.ndarray:
    """Return the messages, bytes and added bytes that a round takes."""
    alpha, beta, gamma = rates
    cost, added = alpha + beta * size, size * one.add
    send, receive = np.bincount(one.source, cost, p), np.bincount(one.dest, cost, p)
    slowest = int(np.argmax(np.maximum(send, receive) + np.bincount(one.dest, gamma * added, p)))
    mine = (one.source if send[slowest] > receive[slowest] else one.dest) == slowest
    return np.array([mine.sum(), size[mine].sum(), added[one.dest == slowest].sum()], float)
