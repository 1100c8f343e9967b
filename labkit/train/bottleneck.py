"""Bottleneck nodes: a rank that is slower than the others, in one of four ways.

Notebooks and `labkit train --bottleneck` describe them by the same text:

    3:slow-processor=3    rank 3 takes three times as long to compute
    3:slow-link=100mbit   rank 3's link is emulated with this bandwidth; 100mbit+1ms adds a latency
    3:slow-link=10        rank 3's link is ten times slower than the other emulated links
    3:jitter=5ms          rank 3 loses between 0 and 5 ms before each step, uniformly distributed
    3:pause=2s@10         rank 3 loses 2 s once, before step 10 (counted from 1, over all epochs)

None of them changes what the model learns. `Straggler` applies a rank's bottlenecks while it trains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter, sleep, thread_time
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from labkit.comm import Link, parse_link
from labkit.nn import Model
from labkit.train.callbacks import Callback
from labkit.units import parse_time

MOST = 1_000_000  # times slower: with a digit too many, a step would never end
# Each kind, and the amount that it needs.
KINDS = {
    "slow-processor": f"a factor from 1 to {MOST:,}, how many times longer the rank takes to compute",
    "slow-link": "a bandwidth such as 100mbit",
    "jitter": "a time such as 5ms",
    "pause": "a time and a step such as 2s@10",
}
SPEED_REPEATS = 15
T = TypeVar("T")


@dataclass(frozen=True)
class Bottleneck:
    """What slows one rank down.

    A slow processor has a `factor` ≥ 1. A slow link has a `factor` or a `link` of its own. Jitter and a pause
    have `seconds` (the most that jitter takes before a step), and a pause has a `step`.
    """

    rank: int
    kind: str
    factor: float = 1.0
    link: Link | None = None
    seconds: float = 0.0
    step: int = 0


def parse(text: str) -> Bottleneck:
    """Return the bottleneck that a text such as "3:jitter=5ms" describes. Raise ValueError for other text."""
    parts = re.fullmatch(r"(\d+):([a-z-]+)=(.+)", text.strip())
    if not parts or parts[2] not in KINDS:
        raise ValueError(
            "expected RANK:KIND=AMOUNT such as 3:slow-processor=3, 3:slow-link=100mbit, 3:jitter=5ms or "
            f"3:pause=2s@10, got {text!r}"
        )
    rank, kind, amount = int(parts[1]), parts[2], parts[3]
    number = float(amount) if re.fullmatch(r"\d+(\.\d+)?", amount) else 0.0
    if kind in ("slow-processor", "slow-link") and 1 <= number <= MOST:
        return Bottleneck(rank, kind, factor=number)
    if kind == "slow-link":
        return Bottleneck(rank, kind, link=parse_link(amount))
    time, at, step = amount.partition("@")
    with suppress(ValueError):
        if kind == "jitter" and not at:
            return Bottleneck(rank, kind, seconds=parse_time(time))
        if kind == "pause" and re.fullmatch(r"[1-9]\d*", step):
            return Bottleneck(rank, kind, seconds=parse_time(time), step=int(step))
    raise ValueError(f"expected {KINDS[kind]} for the {kind} of rank {rank}, got {amount!r}")


def links(bottlenecks: Sequence[Bottleneck], size: int, default: Link | None = None) -> list[Link] | None:
    """Return each rank's emulated link, by rank, or None if there is nothing to emulate.

    A rank without a slow link gets the `default`; if there is none, a link that takes no time. Raise
    ValueError if these bottlenecks are impossible on `size` ranks with this default link.
    """
    named = [(f"{bottleneck.rank}:{bottleneck.kind}", bottleneck.step) for bottleneck in bottlenecks]
    beyond = [f"{bottleneck.rank}:{bottleneck.kind}" for bottleneck in bottlenecks if bottleneck.rank >= size]
    if beyond:
        raise ValueError(f"expected bottlenecks on ranks 0 … {size - 1}, got {', '.join(beyond)}")
    twice = sorted({name for name, step in named if named.count((name, step)) > 1})
    if twice:
        raise ValueError(f"expected each kind of bottleneck once per rank, got {', '.join(twice)} twice")
    slow = {bottleneck.rank: bottleneck for bottleneck in bottlenecks if bottleneck.kind == "slow-link"}
    relative = [
        f"{rank}:slow-link={bottleneck.factor:g}"
        for rank, bottleneck in slow.items()
        if not (bottleneck.link or default)
    ]
    if relative:
        raise ValueError(
            f"expected a bandwidth such as 100mbit for {', '.join(relative)}, or --link with the link that "
            "the factor applies to"
        )
    common = default or Link()
    links_of_ranks = [common] * size
    for rank, bottleneck in slow.items():
        links_of_ranks[rank] = bottleneck.link or common.slower(bottleneck.factor)
    return links_of_ranks if slow or default else None


class Straggler(Callback):
    """Slow this rank down as its bottlenecks say: give it to `train` first among the callbacks.

    Jitter and pauses sleep, as if the system gave the core to another program. A slow processor computes, so
    it keeps its core busy. The jitter is drawn from the seed and the rank. Slow links are not applied here
    but by `labkit.comm.EmulatedComm`.
    """

    def __init__(self, bottlenecks: Sequence[Bottleneck], rank: int, seed: int = 0) -> None:
        of_this_rank = [bottleneck for bottleneck in bottlenecks if bottleneck.rank == rank]
        self.factor = max(
            (bottleneck.factor for bottleneck in of_this_rank if bottleneck.kind == "slow-processor"),
            default=1.0,
        )
        self._jitter_s = sum(bottleneck.seconds for bottleneck in of_this_rank if bottleneck.kind == "jitter")
        self._pauses_s = {
            bottleneck.step: bottleneck.seconds for bottleneck in of_this_rank if bottleneck.kind == "pause"
        }
        self._step = 0
        self._began = 0.0
        self._random = np.random.default_rng((seed, rank))
        self._block = np.full((64, 64), 0.5, np.float32)

    def before_step(self) -> None:
        """Lose the time that jitter and pauses take before a step, then start to count processor time."""
        delay = self.next_delay()
        if delay:
            sleep(delay)
        self._began = thread_time()

    def after_backward(self, model: Model, weight: float) -> None:
        self._stretch(self._began)

    def compute(self, function: Callable[[], T]) -> T:
        """Return what a function returns, after `factor` times the processor time that it took."""
        began = thread_time()
        result = function()
        self._stretch(began)
        return result

    def _stretch(self, began: float) -> None:
        """Use processor time for matrix products in memory of their own; change nothing else."""
        if self.factor == 1:
            return
        until = began + self.factor * (thread_time() - began)
        out = np.empty_like(self._block)
        while thread_time() < until:
            np.matmul(self._block, self._block, out=out)

    def state(self) -> dict[str, np.ndarray]:
        """Return how many steps were begun, since the delays depend on it."""
        return {"step": np.array(self._step)}

    def check(self, state: Mapping[str, np.ndarray], done: int) -> None:
        """Raise ValueError unless `state` has a number of steps that can be done."""
        step = state.get("step")
        if step is None or step.ndim or step.dtype.kind != "i" or not 0 <= step <= done:
            raise ValueError(f"expected at most {done} delayed steps, found {step}")

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Skip the delays of the steps before the break."""
        for _ in range(int(state["step"])):
            self.next_delay()

    def next_delay(self) -> float:
        """Return the time (s) to lose before the next step; each call counts as a step."""
        self._step += 1
        return self._pauses_s.get(self._step, 0.0) + self._random.uniform(0, self._jitter_s)


def speeds(
    comm: MPI.Intracomm, model: Model, x: np.ndarray, y: np.ndarray, straggler: Straggler | None = None
) -> list[float]:
    """Return each rank's speed in samples per second, by rank, measured while all ranks compute. Collective.

    Shapes: x (n, …) and y as the model's targets: some samples of this rank, at least one. The speed is n
    over the median time that a forward and a backward pass take. `model.grads` is overwritten. A `straggler`
    makes this rank slow.
    """
    straggler = straggler or Straggler((), comm.rank)
    times = []
    for _ in range(SPEED_REPEATS):
        comm.Barrier()
        start = perf_counter()
        straggler.compute(lambda: model.loss_and_gradient(x, y))
        times.append(perf_counter() - start)
    return comm.allgather(len(x) / float(np.median(times)))
