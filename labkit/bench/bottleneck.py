"""The time per epoch with one slow rank: shards weighted by speed against equal shards and the ideal.

Each rank needs a core of its own. If ranks share cores, one rank computes while another one waits, and the
time of the ideal is too short.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from mpi4py import MPI

from labkit.bench.rows import Row, in_turns, rows_of
from labkit.data import batches_by_index, digits, strided, weighted
from labkit.nn import lenet5
from labkit.train import Batches, Bottleneck, Straggler, speeds, train

BATCH = 256
LR = 0.05


@dataclass(frozen=True)
class Figures:
    """Numbers beside the rows: each variant's loss in the last epoch, and the speeds that set the shards.

    `to_ideal` is the median over the epochs of (time of weighted shards / ideal time of the same epoch).
    If other programs run on the machine, this says more than the ratio of two medians.
    """

    to_ideal: float
    losses: dict[str, float]
    speeds: list[float]

    def __str__(self) -> str:
        losses = ", ".join(f"{name} {loss:.6f}" for name, loss in self.losses.items())
        speeds = np.array(self.speeds)
        return (
            f"weighted / ideal, median over the epochs: {self.to_ideal:.2f}\n"
            f"loss in the last epoch: {losses}\n"
            f"speeds: {', '.join(f'rank {r} {100 * v:.1f} %' for r, v in enumerate(speeds / speeds.sum()))}"
        )


def measure(comm: MPI.Intracomm, factor: float, epochs: int) -> tuple[list[Row], Figures]:
    """Train LeNet-5 on the digits with and without a slow last rank, in turn; return rows and figures.

    The ideal is the time of equal shards with no slow rank, times p / Σ (1 / a rank's factor): the same work
    and overhead, divided among the ranks' speeds. Collective.
    """
    data = digits((1, 32, 32))
    n, size = len(data.y_train), comm.size
    slow = Straggler([Bottleneck(size - 1, "slow-processor", factor=factor)], comm.rank)
    even = strided(n, comm.rank, size)
    few = even[: max(1, BATCH // size)]
    shares = speeds(comm, lenet5(), data.x_train[few], data.y_train[few], slow)
    by_speed = weighted(n, comm.rank, shares)
    variants = {
        "weighted": (by_speed, slow),
        "equal-shards": (even, slow),
        "no-slow-rank": (even, Straggler((), comm.rank)),
    }
    models = {name: lenet5() for name in variants}

    def epoch(name: str) -> tuple[float, float]:
        """Return the time (s) of an epoch, and its loss."""
        shard, straggler = variants[name]
        slices = batches_by_index(shard, n, BATCH)
        batches = Batches(comm, data.x_train[shard], data.y_train[shard], slices=slices)
        comm.Barrier()
        start = perf_counter()
        [row] = train(comm, models[name], batches, epochs=1, lr=LR, callbacks=[straggler])
        return comm.allreduce(perf_counter() - start, MPI.MAX), row.global_loss

    measured = in_turns(variants, epochs - 1, epoch, warm_up=1)
    times = {name: [seconds for seconds, _ in each] for name, each in measured.items()}
    losses = {name: each[-1][1] for name, each in measured.items()}
    medians = {name: statistics.median(each) for name, each in times.items()}
    lost = size / (size - 1 + 1 / factor)
    ideal = medians["no-slow-rank"] * lost
    pairs = zip(times["weighted"], times["no-slow-rank"], strict=True)
    figures = Figures(statistics.median(ours / (lost * even) for ours, even in pairs), losses, shares)
    shown = {"weighted": medians["weighted"], "ideal": ideal, "equal-shards": medians["equal-shards"]}
    case = f"lenet5/b{BATCH}/p{size}/slow{factor:g}"
    return rows_of(case, {name: 1e3 * s for name, s in shown.items()}, "ms"), figures
