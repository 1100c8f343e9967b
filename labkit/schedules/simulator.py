"""Simulate a schedule on a network of unequal links and unequal ranks, each rank with its own clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from labkit.schedules.cost_model import CostModel, rounds_with_sizes
from labkit.schedules.schedule import IntOrArray, Round, Schedule, Transfer

LEAST_WAIT_S = 1e-3  # shorter waits are not worth a sentence


@dataclass(frozen=True, eq=False)
class Network:
    """Links and ranks to simulate a schedule on; `Network.uniform` makes all of them equal.

    A message takes alpha + beta · bytes, with the larger alpha and the larger beta of the two ranks' links.
    A rank reduces a byte in `gamma` seconds. If the ranks have hosts, every message between two hosts also
    passes the uplinks of both, which have an alpha and a beta of their own; an uplink carries one message at
    a time in each direction.

    Shapes: alpha, beta, gamma (ranks,), float64; host (ranks,), the number of each rank's host, or None.
    Units: s/message, s/byte, s/byte.
    """

    alpha: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray
    host: np.ndarray | None = None
    uplink: tuple[float, float] = 0.0, 0.0

    @classmethod
    def uniform(cls, p: int, model: CostModel) -> Network:
        """Return a network of p equal ranks with equal links."""
        alpha, beta, gamma = (np.full(p, float(value)) for value in model)
        return cls(alpha, beta, gamma)

    def slow_link(self, rank: int, factor: float) -> Network:
        """Return a copy in which this rank's link is slower both ways: alpha and beta times `factor`."""
        return replace(self, alpha=_scaled(self.alpha, rank, factor), beta=_scaled(self.beta, rank, factor))

    def on_hosts(self, host: Sequence[int] | np.ndarray, alpha: float, beta: float) -> Network:
        """Return a copy with the host (0, 1, …) of each rank, and with the alpha and beta of every uplink."""
        return replace(self, host=np.asarray(host), uplink=(alpha, beta))

    def crosses(self, source: IntOrArray, dest: IntOrArray) -> bool | np.ndarray:
        """Return whether a message passes uplinks."""
        return False if self.host is None else self.host[source] != self.host[dest]

    def seconds(self, source: IntOrArray, dest: IntOrArray, nbytes: IntOrArray) -> np.ndarray:
        """Return how long a message takes, in seconds; all arguments may be arrays."""
        alpha = np.maximum(self.alpha[source], self.alpha[dest])
        beta = np.maximum(self.beta[source], self.beta[dest])
        crosses = self.crosses(source, dest)
        alpha, beta = np.maximum(alpha, crosses * self.uplink[0]), np.maximum(beta, crosses * self.uplink[1])
        return alpha + beta * nbytes

    def ports(self, source: int, dest: int) -> list[int]:
        """Return the numbers, below 4p, of the ports that a message occupies: of both ranks and hosts."""
        p, ends = len(self.alpha), [source, dest]
        if self.host is not None and self.crosses(source, dest):
            ends += [2 * p + int(self.host[source]), 2 * p + int(self.host[dest])]
        return [end + p * (number % 2) for number, end in enumerate(ends)]


def lower_bound(network: Network, nbytes: int) -> float:
    """Return a time (s) that no all-reduce of `nbytes` bytes can beat on this network.

    - A cut: take the ranks on one side of a link, a rank's or a host's uplink. Each byte of their sum has to
      leave, and what the others add to it has to come in. So the link carries at least one message of
      `nbytes` each way: α + βn.
    - All links: each byte is sent at least 2(p-1) times (notebook 05, section 2). In T seconds, rank r sends
      at most (T - α) / β_r bytes. So T ≥ α + 2(p-1)n / Σ (1/β_r), with equal links α + 2(p-1)/p·βn.

    Source of the second: P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, JPDC 69(2), 2009, 117–124.
    """
    p = len(network.alpha)
    if p == 1:
        return 0.0
    together = network.alpha.min() + 2 * (p - 1) * nbytes / (1 / network.beta).sum()
    bounds = [together, *(network.alpha + network.beta * nbytes)]
    if network.host is not None and len(set(network.host)) > 1:
        bounds.append(network.uplink[0] + network.uplink[1] * nbytes)
    return float(max(bounds))


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


def simulate(schedule: Schedule, nbytes: int, network: Network, timeline: bool = False) -> Simulation:
    """Simulate one call of the schedule on a float32 array of `nbytes` bytes.

    There is no barrier between rounds: a rank continues as soon as its own transfers are done and reduced. A
    transfer starts when both its ranks have reached it. A rank sends and receives at the same time, but only
    one message in each direction; of several, the transfer that became ready first goes first. With
    `timeline`, also return every transfer. Raise ValueError if the network has another number of ranks than
    the schedule.
    """
    if len(network.alpha) != schedule.p:
        raise ValueError(f"the schedule is for {schedule.p} ranks, but the network has {len(network.alpha)}")
    clock, free = np.zeros(schedule.p), np.zeros(4 * schedule.p)
    transfers: list[TimedTransfer] = []
    for number, (round_, sizes) in enumerate(rounds_with_sizes(schedule, nbytes), start=1):
        durations = network.seconds(round_.source, round_.dest, sizes)
        reductions = sizes * round_.reduce * network.gamma[round_.dest]
        start = np.maximum(clock[round_.source], clock[round_.dest])
        if network.host is not None or _has_queues(round_, schedule.p):
            start = _start_in_turn(round_, durations, start, free, network)
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


def _has_queues(round_: Round, p: int) -> bool:
    """Return whether any rank sends, or receives, more than one message in this round."""
    return any(np.bincount(rank, minlength=p).max() > 1 for rank in (round_.source, round_.dest))


def _start_in_turn(
    round_: Round, durations: np.ndarray, ready: np.ndarray, free: np.ndarray, network: Network
) -> np.ndarray:
    """Return when each transfer starts if messages queue up; set when each port is free again.

    Shapes: all (transfers,) but free (4 · ranks,). `ready` is the time at which both ranks have reached the
    transfer. Between rounds, an uplink carries the messages of the earlier round first.
    """
    start = ready.copy()
    for i in np.argsort(ready, kind="stable").tolist():
        ports = network.ports(round_.source[i], round_.dest[i])
        start[i] = max(ready[i], *free[ports])
        free[ports] = start[i] + durations[i]
    return start


def _scaled(values: np.ndarray, rank: int, factor: float) -> np.ndarray:
    values = values.copy()
    values[rank] *= factor
    return values


class Wait(NamedTuple):
    """A time from `start` to `end` (s) in which a rank neither sends nor receives, although it has to."""

    rank: int
    round: int
    start: float
    end: float
    transfer: Transfer  # the one that starts at `end`
    for_peer: bool  # because the other rank has not reached it; else because the way is not free

    def __str__(self) -> str:
        peer = self.transfer.dest if self.rank == self.transfer.source else self.transfer.source
        until = (
            f"rank {peer} reached the round" if self.for_peer else f"the way to or from rank {peer} was free"
        )
        return (
            f"rank {self.rank} lost most time in round {self.round}, where it waited for "
            f"{1e3 * (self.end - self.start):.0f} ms until {until}"
        )


def longest_wait(timeline: Sequence[TimedTransfer]) -> Wait | None:
    """Return the longest wait of any rank in a timeline; None if all are shorter than 1 ms."""
    waits: list[Wait] = []
    reached: dict[int, float] = {}
    for number, timed in groupby(sorted(timeline), attrgetter("round")):
        before = dict(reached)  # when each rank has reached this round
        for timed_transfer in sorted(timed, key=attrgetter("start")):
            source, dest, *_ = timed_transfer.transfer
            for rank, peer in ((source, dest), (dest, source)):
                start = reached.get(rank, 0.0)
                late = before.get(peer, 0.0) > timed_transfer.start - LEAST_WAIT_S
                waits.append(Wait(rank, number, start, timed_transfer.start, timed_transfer.transfer, late))
                reached[rank] = max(start, timed_transfer.end)
    longest = max(waits, key=lambda wait: wait.end - wait.start, default=None)
    return longest if longest and longest.end - longest.start >= LEAST_WAIT_S else None
