"""Simulate a schedule on a network of unequal links and unequal ranks, each rank with its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from labkit.schedules.cost_model import CostModel
from labkit.schedules.schedule import Round, Schedule, Transfer
from labkit.schedules.traffic import rounds_with_sizes


@dataclass(frozen=True, eq=False)
class Network:
    """Links and ranks to simulate a schedule on; `Network.uniform` makes all of them equal.

    A message takes alpha + beta · bytes, with the larger alpha and the larger beta of the two ranks' links,
    unless `links[source, dest]` holds another (alpha, beta). A rank reduces a byte in `gamma` seconds and
    enters the collective at `ready`.

    Shapes: all arrays (ranks,), float64. Units: s/message, s/byte, s/byte, s.
    """

    alpha: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray
    ready: np.ndarray
    links: Mapping[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def uniform(cls, p: int, model: CostModel) -> Network:
        """Return a network of p equal ranks with equal links, in which all ranks are ready at time 0."""
        alpha, beta, gamma = (np.full(p, float(value)) for value in model)
        return cls(alpha, beta, gamma, np.zeros(p))

    def slow_link(self, rank: int, factor: float) -> Network:
        """Return a copy in which this rank's link is slower both ways: alpha and beta times `factor`."""
        return replace(self, alpha=_scaled(self.alpha, rank, factor), beta=_scaled(self.beta, rank, factor))

    def slow_processor(self, rank: int, factor: float) -> Network:
        """Return a copy in which this rank takes `factor` times as long to reduce."""
        return replace(self, gamma=_scaled(self.gamma, rank, factor))

    def pause(self, rank: int, seconds: float) -> Network:
        """Return a copy in which this rank enters the collective `seconds` later."""
        ready = self.ready.copy()
        ready[rank] += seconds
        return replace(self, ready=ready)

    def link(self, source: int, dest: int, alpha: float, beta: float) -> Network:
        """Return a copy with another alpha and beta from source to dest, in this direction only."""
        return replace(self, links={**self.links, (source, dest): (alpha, beta)})


class TimedTransfer(NamedTuple):
    """A simulated transfer: the number of its round (from 1), its start and its end in seconds."""

    round: int
    transfer: Transfer
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """The time at which each rank has finished, (ranks,), in seconds; and every transfer, if requested."""

    finish: np.ndarray
    timeline: list[TimedTransfer]

    @property
    def seconds(self) -> float:
        """Return the time at which the last rank has finished."""
        return float(self.finish.max())


def simulate(
    schedule: Schedule, nbytes: int, network: Network, itemsize: int = 4, timeline: bool = False
) -> Simulation:
    """Simulate one call of the schedule on an array of `nbytes` bytes.

    There is no barrier between rounds: a rank continues as soon as its own transfers are done and reduced. A
    transfer starts when both its ranks have reached it. A rank sends and receives at the same time, but only
    one message in each direction; of several, the transfer that became ready first goes first. With
    `timeline`, also return every transfer. Raise ValueError if the network has another number of ranks than
    the schedule.
    """
    if len(network.ready) != schedule.p:
        raise ValueError(f"the schedule is for {schedule.p} ranks, but the network has {len(network.ready)}")
    clock = network.ready.copy()
    transfers: list[TimedTransfer] = []
    for number, (round_, sizes) in enumerate(rounds_with_sizes(schedule, nbytes, itemsize), start=1):
        durations = _durations(round_, sizes, network)
        reductions = sizes * round_.reduce * network.gamma[round_.dest]
        start = np.maximum(clock[round_.source], clock[round_.dest])
        if _has_queues(round_, schedule.p):
            start = _start_in_turn(round_, durations, start, clock)
            end = start + durations
            np.maximum.at(clock, round_.source, end)
            np.maximum.at(clock, round_.dest, end)
            np.add.at(clock, round_.dest, reductions)
        else:  # no rank is source or dest twice, so plain indexing works; it is several times faster
            end = start + durations
            clock[round_.source] = end
            clock[round_.dest] = np.maximum(clock[round_.dest], end) + reductions
        if timeline:
            transfers += map(TimedTransfer, [number] * len(round_), round_, start.tolist(), end.tolist())
    return Simulation(clock, transfers)


def _durations(round_: Round, sizes: np.ndarray, network: Network) -> np.ndarray:
    """Return how long each transfer takes, in seconds. Shape: (transfers,)."""
    alpha = np.maximum(network.alpha[round_.source], network.alpha[round_.dest])
    beta = np.maximum(network.beta[round_.source], network.beta[round_.dest])
    for (source, dest), alpha_beta in network.links.items():
        on_link = (round_.source == source) & (round_.dest == dest)
        alpha[on_link], beta[on_link] = alpha_beta
    return alpha + beta * sizes


def _has_queues(round_: Round, p: int) -> bool:
    """Return whether any rank sends, or receives, more than one message in this round."""
    return any(np.bincount(rank, minlength=p).max() > 1 for rank in (round_.source, round_.dest))


def _start_in_turn(round_: Round, durations: np.ndarray, ready: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Return when each transfer starts if messages queue up.

    Shapes: all (transfers,) but clock (ranks,). `ready` is the time at which both ranks have reached the
    transfer.
    """
    start, send_free, receive_free = ready.copy(), clock.copy(), clock.copy()
    for i in np.argsort(ready, kind="stable").tolist():
        source, dest = round_.source[i], round_.dest[i]
        start[i] = max(send_free[source], receive_free[dest])
        send_free[source] = receive_free[dest] = start[i] + durations[i]
    return start


def _scaled(values: np.ndarray, rank: int, factor: float) -> np.ndarray:
    values = values.copy()
    values[rank] *= factor
    return values
