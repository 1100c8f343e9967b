"""Bottleneck nodes: one rank that is slower than the others, in one of four ways.

The same words serve in a notebook, in `labkit train --bottleneck` and in the simulator:

    3:slow-processor=3    rank 3 computes for three times as long
    3:slow-link=100mbit   rank 3's link is emulated at that rate; 100mbit+1ms adds a latency
    3:slow-link=10        rank 3's link is ten times slower than the other emulated ones
    3:jitter=5ms          rank 3 loses between 0 and 5 ms before each step, evenly distributed
    3:pause=2s@10         rank 3 loses 2 s once, before step 10 (counted from 1, over all epochs)

None of them changes what is learnt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import sleep, thread_time
from typing import Literal, TypeVar, get_args

import numpy as np

from labkit.comm.emulation.links import Link, parse_link
from labkit.schedules import CostModel, Network
from labkit.units import format_time, parse_time

Kind = Literal["slow-processor", "slow-link", "jitter", "pause"]
KINDS: tuple[Kind, ...] = get_args(Kind)
EXPECTED = (
    "expected RANK:KIND=AMOUNT such as 3:slow-processor=3, 3:slow-link=100mbit, 3:jitter=5ms or 3:pause=2s@10"
)

T = TypeVar("T")


@dataclass(frozen=True)
class Bottleneck:
    """One rank's trouble; `str` gives the text that `parse` reads.

    `factor` belongs to a slow processor (≥ 1) and to a slow link that has no `link` of its own, `seconds` to
    jitter (at most so many before each step) and to a pause, `step` to a pause.
    """

    rank: int
    kind: Kind
    factor: float = 1.0
    link: Link | None = None
    seconds: float = 0.0
    step: int = 0

    def __str__(self) -> str:
        amount = {
            "slow-processor": f"{self.factor:.10g}",
            "slow-link": str(self.link or f"{self.factor:.10g}"),
            "jitter": format_time(self.seconds),
            "pause": f"{format_time(self.seconds)}@{self.step}",
        }
        return f"{self.rank}:{self.kind}={amount[self.kind]}"


def parse(text: str) -> Bottleneck:
    """Return the bottleneck that a text names; a ValueError that says what is expected if it names none."""
    parts = re.fullmatch(r"(\d+):([a-z-]+)=(.+)", text.strip())
    if not parts or parts[2] not in KINDS:
        raise ValueError(f"{EXPECTED}, got {text!r}")
    rank, amount = int(parts[1]), parts[3]
    times_slower = float(amount) if re.fullmatch(r"\d+(\.\d+)?", amount) else 0.0
    if parts[2] == "slow-processor":
        if times_slower < 1:
            raise ValueError(
                f"expected how many times longer rank {rank} computes, 1 or more, got {amount!r}"
            )
        return Bottleneck(rank, "slow-processor", factor=times_slower)
    if parts[2] == "slow-link":
        if times_slower >= 1:
            return Bottleneck(rank, "slow-link", factor=times_slower)
        return Bottleneck(rank, "slow-link", link=parse_link(amount))
    time, at, step = amount.partition("@")
    try:
        seconds = parse_time(time)
    except ValueError:
        seconds = None
    if parts[2] == "jitter":
        if seconds is None or at:
            raise ValueError(f"expected a time such as 5ms for the jitter of rank {rank}, got {amount!r}")
        return Bottleneck(rank, "jitter", seconds=seconds)
    if seconds is None or not re.fullmatch(r"[1-9]\d*", step):
        raise ValueError(
            f"expected a time and a step such as 2s@10 for the pause of rank {rank}, got {amount!r}"
        )
    return Bottleneck(rank, "pause", seconds=seconds, step=int(step))


def check(bottlenecks: Sequence[Bottleneck], size: int, usual: Link | None = None) -> str | None:
    """Return what is wrong with these on `size` ranks with the `usual` link, if anything."""
    beyond = [str(one) for one in bottlenecks if one.rank >= size]
    if beyond:
        return f"expected bottlenecks on ranks 0 … {size - 1}, got {', '.join(beyond)}"
    named = [(one.rank, one.kind, one.step) for one in bottlenecks]
    twice = sorted({f"{rank}:{kind}" for rank, kind, step in named if named.count((rank, kind, step)) > 1})
    if twice:
        return f"expected one bottleneck of a kind on a rank, got two of {', '.join(twice)}"
    of_what = [str(one) for one in bottlenecks if one.kind == "slow-link" and not (one.link or usual)]
    if of_what:
        return f"expected a rate such as 100mbit, or the links of all (--link), for {', '.join(of_what)}"
    return None


def factors(bottlenecks: Sequence[Bottleneck], size: int) -> list[float]:
    """Return how many times longer than without bottlenecks each rank computes, by rank."""
    slow = {one.rank: one.factor for one in bottlenecks if one.kind == "slow-processor"}
    return [slow.get(rank, 1.0) for rank in range(size)]


def links(bottlenecks: Sequence[Bottleneck], size: int, usual: Link | None = None) -> list[Link] | None:
    """Return each rank's emulated link, by rank; None if there is none to emulate.

    `usual` is the link of a rank that has no slow one: without it, one that takes no time.
    """
    common = usual or Link()
    slow = {one.rank: one.link or common.slower(one.factor) for one in bottlenecks if one.kind == "slow-link"}
    return [slow.get(rank, common) for rank in range(size)] if slow or usual else None


def network(
    bottlenecks: Sequence[Bottleneck], size: int, usual: Link, gamma: float = 0.0, step: int = 1
) -> Network:
    """Return the simulator's network with these bottlenecks, in a step of the run (counted from 1).

    `gamma` is the time (s) in which a rank adds a byte, of a slow processor its factor times that. Jitter
    counts with its mean. That a slow processor comes later to the call, after its computing, is not in it:
    `Network.pause` adds it.
    """
    found = Network.uniform(size, CostModel(usual.latency_s, usual.s_per_byte, gamma))
    by_rank = links(bottlenecks, size, usual) or []
    alpha, beta = (np.array(v) for v in zip(*((k.latency_s, k.s_per_byte) for k in by_rank), strict=True))
    found = replace(found, alpha=alpha, beta=beta, gamma=gamma * np.array(factors(bottlenecks, size)))
    for one in bottlenecks:
        if one.kind == "jitter":
            found = found.pause(one.rank, one.seconds / 2)
        elif one.kind == "pause" and one.step == step:
            found = found.pause(one.rank, one.seconds)
    return found


class Straggler:
    """What bottlenecks do to one rank while it trains: `train` and `speeds` call it.

    The jitter is drawn from the seed and the rank. Lost time is slept, as when the system gives the core to
    another program; a slow processor computes, so it also takes the core.
    """

    def __init__(self, bottlenecks: Sequence[Bottleneck], rank: int, size: int, seed: int = 0) -> None:
        self.factor = factors(bottlenecks, size)[rank]
        own = [one for one in bottlenecks if one.rank == rank]
        self._jitter_s = sum(one.seconds for one in own if one.kind == "jitter")
        self._pauses_s = {one.step: one.seconds for one in own if one.kind == "pause"}
        self._step = 0
        self._random = np.random.default_rng((seed, rank))
        self._block = np.full((64, 64), 0.5, np.float32)

    def lose_time(self) -> None:
        """Lose the time that jitter and pauses take before a step; call it before each one."""
        if lost := self.lost():
            sleep(lost)

    def lost(self) -> float:
        """Return how much time (s) is lost before the next step."""
        self._step += 1
        return self._pauses_s.get(self._step, 0.0) + self._random.uniform(0, self._jitter_s)

    def compute(self, work: Callable[..., T], *given: np.ndarray) -> T:
        """Return what the work makes of what is given, after `factor` times the processor time that it took.

        The time is spent on matrix products of their own, so nothing that the work left behind changes.
        """
        if self.factor == 1:
            return work(*given)
        began = thread_time()
        result = work(*given)
        until = began + self.factor * (thread_time() - began)
        out = np.empty_like(self._block)
        while thread_time() < until:
            np.matmul(self._block, self._block, out=out)
        return result
