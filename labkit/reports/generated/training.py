"""A data-parallel run of a softmax regression on the digits: p ranks, one after the other in one process."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from labkit import data, nn


@dataclass(frozen=True)
class Settings:
    """Settings of a run. Rank r trains on samples start[r] … stop[r] - 1, dealt to `updates` local batches.

    Two faults change the training itself: `left_out` is the rank that updates with its own gradient, and
    `factor` multiplies each update.
    """

    start: np.ndarray  # (p,)
    stop: np.ndarray  # (p,)
    updates: int  # per epoch; divides each shard
    epochs: int
    learning_rate: float
    order: int  # the seed of the samples' order
    left_out: int | None = None
    factor: int = 1

    @property
    def samples(self) -> np.ndarray:
        """Return the number of samples on each rank. Shape: (p,)."""
        return self.stop - self.start


@cache
def _digits() -> data.Dataset:
    return data.digits()


def in_order(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training samples and labels, roughly sorted by label, so that the shards differ."""
    digits, rng = _digits(), np.random.default_rng([seed, 1])
    order = np.argsort(digits.y_train + rng.normal(0, 6, len(digits.y_train)), kind="stable")
    return digits.x_train[order], digits.y_train[order]


def run(settings: Settings, reverse: bool = False) -> dict[str, np.ndarray]:
    """Train, and return what the ranks print after each epoch.

    Each gradient is weighted with the size of its local batch. `reverse` adds the gradients from the last
    rank to the first, as another all-reduce algorithm may: results then differ by rounding.

    Shapes: local_loss, correct, checksum, bias_gradient (p, epochs); bias_change (epochs,). The last two are
    of the epoch's last update: the gradient and the change of the first bias, before and after averaging.
    """
    x, y = in_order(settings.order)
    model, p = nn.softmax_regression(seed=settings.order), len(settings.samples)
    shards = [(x[a:b], y[a:b]) for a, b in zip(settings.start, settings.stop, strict=True)]
    weights = (settings.samples / settings.samples.sum()).astype(model.params.dtype)
    common = model.params.copy()
    params = [model.params.copy() if rank == settings.left_out else common for rank in range(p)]
    printed: dict[str, np.ndarray] = {
        name: np.empty((p, settings.epochs)) for name in ("local_loss", "bias_gradient")
    }
    printed |= {name: np.empty((p, settings.epochs), np.int64) for name in ("correct", "checksum")}
    printed["bias_change"] = np.empty(settings.epochs)
    grads = np.empty((p, model.params.size), model.params.dtype)
    for epoch in range(settings.epochs):
        for update in range(settings.updates):
            for rank, (images, labels) in enumerate(shards):
                model.params[...] = params[rank]
                model.loss_and_gradient(
                    images[update :: settings.updates], labels[update :: settings.updates]
                )
                grads[rank] = model.grads
            before = float(model.views(common)["b"][0])
            order = range(p - 1, -1, -1) if reverse else range(p)
            mean = np.zeros_like(common)
            for rank in order:
                mean += weights[rank] * grads[rank]
            common -= settings.learning_rate * settings.factor * mean
            if settings.left_out is not None:
                params[settings.left_out] -= settings.learning_rate * grads[settings.left_out]
        printed["bias_change"][epoch] = float(model.views(common)["b"][0]) - before
        for rank, (images, labels) in enumerate(shards):
            printed["bias_gradient"][rank, epoch] = model.views(grads[rank])["b"][0]
            model.params[...] = params[rank]
            printed["local_loss"][rank, epoch] = model.loss(images, labels)
            printed["correct"][rank, epoch] = model.correct
            printed["checksum"][rank, epoch] = zlib.crc32(params[rank].tobytes())
    return printed


def times(
    rng: np.random.Generator, samples: np.ndarray, updates: int, epochs: int, slowdown: np.ndarray
) -> dict[str, np.ndarray]:
    """Draw the ranks' times in each epoch from a model of a synchronous job. Shapes: (p, epochs), seconds.

    Computation is proportional to the samples, times a rank's slowdown, within 4 %. Each rank then waits for
    the slowest, and the transfer takes updates · (2(p - 1) α + 2(p - 1)/p · n β), the cost of a ring. The
    latency α is drawn so that the transfer takes between a quarter and four fifths of the computation without
    a slow rank. Every rank books its wait as synchronisation: `sync_s` is wait plus transfer. Clocks agree
    within 0.1 %.
    """
    p = len(samples)
    per_sample = rng.uniform(5e-6, 2e-5)
    longest = per_sample * samples.max()
    bandwidth_s = 2 * (p - 1) / p * 650 * 4 / 1e9
    latency = rng.uniform(0.25, 0.8) * longest / (updates * 2 * (p - 1))
    transfer = updates * (2 * (p - 1) * latency + bandwidth_s)
    compute = per_sample * (samples * slowdown)[:, None] * rng.uniform(0.96, 1.04, (p, epochs))
    total = compute.max(axis=0) + transfer * rng.uniform(0.95, 1.05, epochs)
    total = total * rng.uniform(0.999, 1.001, (p, epochs))
    return {"compute_s": compute, "sync_s": total - compute, "total_s": total}
