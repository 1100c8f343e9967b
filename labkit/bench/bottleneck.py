"""What sharding by speed gains where one rank is slow: the time per epoch against the ideal.

Needs a core for each rank. Where ranks share cores, the time that one rank waits is computed in by another,
and neither "slow" nor "ideal" means what it says.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from mpi4py import MPI

from labkit.bench.rows import Row, rows_of
from labkit.data import digits, in_order, strided, weighted
from labkit.nn import lenet5
from labkit.train import Batches, Bottleneck, Straggler, speeds, train

BATCH = 256
LR = 0.05


@dataclass(frozen=True)
class Figures:
    """The loss in the last epoch by way, the speeds that the shards go by, and a median of pairs.

    `to_ideal` is the median over the epochs of time by speed / ideal time, both of one epoch: where other
    programs come and go, pairs tell more than the ratio of two medians.
    """

    to_ideal: float
    losses: dict[str, float]
    speeds: list[float]


def measure(comm: MPI.Intracomm, factor: float, epochs: int) -> tuple[list[Row], Figures]:
    """Train LeNet-5 on the digits with and without a slow last rank, in turn; return rows and figures.

    The ideal is what the same run takes in equal shards with no rank slow, times p / Σ (1 / factor of a
    rank): the same work and the same overhead, shared out to what speed there is. Collective.
    """
    data = digits((1, 32, 32))
    n, size = len(data.y_train), comm.size
    slow = Straggler([Bottleneck(size - 1, "slow-processor", factor=factor)], comm.rank, size)
    even = strided(n, comm.rank, size)
    few = even[: max(1, BATCH // size)]
    found = speeds(comm, lenet5(), data.x_train[few], data.y_train[few], slow)
    by_speed = weighted(n, comm.rank, found)
    algorithms = {
        "weighted": (by_speed, slow),
        "equal-shards": (even, slow),
        "no-slow-rank": (even, Straggler((), comm.rank, size)),
    }
    models = {name: lenet5() for name in algorithms}
    times: dict[str, list[float]] = {name: [] for name in algorithms}
    losses = dict.fromkeys(algorithms, 0.0)
    for epoch in range(epochs):
        for name in algorithms if epoch % 2 else reversed(algorithms):
            shard, straggler = algorithms[name]
            slices = in_order(shard, n, BATCH)
            batches = Batches(comm, data.x_train[shard], data.y_train[shard], slices=slices)
            comm.Barrier()
            start = perf_counter()
            [row] = train(comm, models[name], batches, epochs=1, lr=LR, callbacks=[straggler])
            seconds = comm.allreduce(perf_counter() - start, MPI.MAX)
            losses[name] = row.global_loss
            if epoch:  # the first warms up
                times[name].append(seconds)
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    lost = size / (size - 1 + 1 / factor)
    ideal = medians["no-slow-rank"] * lost
    pairs = zip(times["weighted"], times["no-slow-rank"], strict=True)
    figures = Figures(statistics.median(ours / (lost * even) for ours, even in pairs), losses, found)
    shown = {"weighted": medians["weighted"], "ideal": ideal, "equal-shards": medians["equal-shards"]}
    case = f"lenet5/b{BATCH}/p{size}/slow{factor:g}"
    return rows_of(case, {name: 1e3 * s for name, s in shown.items()}, "ms"), figures


def said(figures: Figures) -> str:
    """Return what the figures say, in a line each."""
    losses = ", ".join(f"{name} {loss:.6f}" for name, loss in figures.losses.items())
    rates = np.array(figures.speeds)
    return (
        f"weighted / ideal, median over the epochs: {figures.to_ideal:.2f}\n"
        f"loss in the last epoch: {losses}\n"
        f"speeds: {', '.join(f'rank {r} {100 * v:.1f} %' for r, v in enumerate(rates / rates.sum()))}"
    )
