"""A schedule played on a network of unequal links and unequal ranks, each rank by its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from labkit.schedules.cost_model import CostModel
from labkit.schedules.schedule import Round, Schedule, Transfer
from labkit.schedules.traffic import loads


@dataclass(frozen=True, eq=False)
class Network:
    """Links and ranks. Shapes: all (ranks,), float64, in seconds; `Network.of` makes one of equals.

    A message from one rank to another takes alpha + beta · bytes, both of the slower of the two ranks' links,
    unless `links[source, dest]` names another (alpha, beta). A rank adds a byte in `gamma` and comes to the
    call at `ready`.
    """

    alpha: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray
    ready: np.ndarray
    links: Mapping[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, p: int, rates: CostModel) -> Network:
        """Return a network of p equal ranks with equal links, all ready at 0."""
        alpha, beta, gamma = (np.full(p, float(rate)) for rate in rates)
        return cls(alpha, beta, gamma, np.zeros(p))

    def slow_link(self, rank: int, factor: float) -> Network:
        """Return the network with this rank's link slower, both ways: alpha and beta times `factor`."""
        return replace(self, alpha=_times(self.alpha, rank, factor), beta=_times(self.beta, rank, factor))

    def slow_processor(self, rank: int, factor: float) -> Network:
        """Return the network with this rank slower at its own work, which here is adding."""
        return replace(self, gamma=_times(self.gamma, rank, factor))

    def pause(self, rank: int, seconds: float) -> Network:
        """Return the network with this rank ready later."""
        ready = self.ready.copy()
        ready[rank] += seconds
        return replace(self, ready=ready)

    def link(self, source: int, dest: int, alpha: float, beta: float) -> Network:
        """Return the network with other rates from source to dest, that way only."""
        return replace(self, links={**self.links, (source, dest): (alpha, beta)})


class Event(NamedTuple):
    """A transfer as it happened: in which round, from when to when, in seconds."""

    round: int
    transfer: Transfer
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """When each rank is done, (ranks,), in seconds; and every transfer, if that was asked for."""

    finish: np.ndarray
    timeline: list[Event]

    @property
    def seconds(self) -> float:
        """When the last rank is done."""
        return float(self.finish.max())


def simulate(
    schedule: Schedule, nbytes: int, network: Network, itemsize: int = 4, timeline: bool = False
) -> Simulation:
    """Play the schedule on an array of `nbytes` bytes.

    No barrier between rounds: a rank goes on to its next transfers as soon as its own are done and added. A
    transfer begins when both ends have come to it; a rank sends and receives at once, but one message at a
    time each way, those first whose ends are there first.
    """
    if len(network.ready) != schedule.p:
        raise ValueError(f"the schedule is for {schedule.p} ranks, the network has {len(network.ready)}")
    clock = network.ready.copy()
    events: list[Event] = []
    for number, (one, size) in enumerate(loads(schedule, nbytes, itemsize), start=1):
        takes, adds = _takes(one, size, network), size * one.add * network.gamma[one.dest]
        start = np.maximum(clock[one.source], clock[one.dest])
        if _queues(one, schedule.p):
            start = _queued(one, takes, start, clock)
            end = start + takes
            np.maximum.at(clock, one.source, end)
            np.maximum.at(clock, one.dest, end)
            np.add.at(clock, one.dest, adds)
        else:  # no rank twice in source or dest: several times faster by plain indexing
            end = start + takes
            clock[one.source] = end
            clock[one.dest] = np.maximum(clock[one.dest], end) + adds
        if timeline:
            events += map(Event, [number] * len(one), one, start.tolist(), end.tolist())
    return Simulation(clock, events)


def _takes(one: Round, size: np.ndarray, network: Network) -> np.ndarray:
    """Return how long each transfer takes."""
    alpha = np.maximum(network.alpha[one.source], network.alpha[one.dest])
    beta = np.maximum(network.beta[one.source], network.beta[one.dest])
    for (source, dest), rates in network.links.items():
        there = (one.source == source) & (one.dest == dest)
        alpha[there], beta[there] = rates
    return alpha + beta * size


def _queues(one: Round, p: int) -> bool:
    """Tell whether some rank sends, or receives, more than one message."""
    return any(np.bincount(rank, minlength=p).max() > 1 for rank in (one.source, one.dest))


def _queued(one: Round, takes: np.ndarray, there: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Return when each transfer starts if messages queue up; `there`: when both its ends have come."""
    start, sends, receives = there.copy(), clock.copy(), clock.copy()
    for i in np.argsort(there, kind="stable").tolist():
        source, dest = one.source[i], one.dest[i]
        start[i] = max(sends[source], receives[dest])
        sends[source] = receives[dest] = start[i] + takes[i]
    return start


def _times(rates: np.ndarray, rank: int, factor: float) -> np.ndarray:
    rates = rates.copy()
    rates[rank] *= factor
    return rates
