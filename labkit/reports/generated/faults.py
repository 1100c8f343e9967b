"""The kinds of faults in a generated report, and the figures of a report with one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from labkit.reports.generated.training import Settings, run, times

KINDS = {
    "none": "The figures fit each other.",
    "left out": "One rank updates with its own gradient instead of the average.",
    "sum": "The gradients are summed, not averaged: each update is p times as long.",
    "shards": "One rank's shard does not start where the shard of the rank before it ends.",
    "count": "One rank's accuracy is divided by a wrong number of samples.",
    "unweighted": "The global loss is the plain mean of the local losses, though the shards are unequal.",
    "settings": "The two runs differ in more than the algorithm: one makes more updates per epoch.",
    "straggler": "One rank computes slowly; the others count their wait for it as synchronisation.",
    "clock": "One rank's clock stops too early, so this rank seems faster than the others.",
}
ON_ONE_RANK = {"left out", "shards", "count", "straggler", "clock"}


class Answer(NamedTuple):
    """The planted fault, and the rank it is on; None if it is on no rank in particular."""

    kind: str
    rank: int | None


def answer(seed: int) -> Answer:
    """Return the fault that is planted in the report of this seed."""
    return _placed(np.random.default_rng([seed, 0]))[0]


def _placed(rng: np.random.Generator) -> tuple[Answer, int]:
    """Draw a fault, its rank, and the number of ranks."""
    kind = str(rng.choice(list(KINDS)))
    p = int(rng.integers(3 if kind == "left out" else 2, 9))  # of two ranks, none is the odd one
    first = 1 if kind in ("left out", "shards") else 0
    return Answer(kind, int(rng.integers(first, p)) if kind in ON_ONE_RANK else None), p


def figures(seed: int) -> dict[str, Any]:
    """Return the figures of the report of this seed by name: arrays by rank and epoch, and numbers."""
    rng = np.random.default_rng([seed, 0])
    (kind, rank), p = _placed(rng)
    updates = int(rng.choice([2, 4, 6]))
    batches = rng.permutation(np.r_[4, 14, rng.choice([4, 6, 8, 10, 12, 14], p - 2)])
    stop = np.cumsum(updates * batches)
    settings = Settings(
        start=stop - updates * batches,
        stop=stop,
        updates=updates,
        epochs=int(rng.integers(5, 9)),
        learning_rate=float(rng.choice([0.05, 0.1, 0.2])),
        order=seed,
    )
    total = int(stop[-1])
    slowdown = np.ones(p)
    if kind == "shards" and rank is not None:
        settings.start[rank] += updates * int(rng.choice([-4, -2, 2]))
    elif kind == "straggler":
        slowdown[rank] = rng.uniform(1.8, 3)
    elif kind == "left out":
        settings = replace(settings, left_out=rank)
    elif kind == "sum":
        settings = replace(settings, factor=p)
    other = settings
    if kind == "settings":
        other = replace(settings, updates=updates * 2 if rng.random() < 0.5 else updates // 2)

    samples = settings.samples
    printed = run(settings)
    correct = printed.pop("correct")
    clocks = times(rng, samples, updates, settings.epochs, slowdown)
    counted = np.repeat(samples[:, None], settings.epochs, axis=1)
    if kind == "count":
        counted[rank] = _wrong_count(rng, correct[rank], int(samples[rank]))
    elif kind == "clock":
        missed = rng.uniform(0.5, 0.8) * clocks["sync_s"][rank]
        clocks["sync_s"][rank] -= missed
        clocks["total_s"][rank] -= missed
    weights = np.ones(p) / p if kind == "unweighted" else samples / samples.sum()
    return {
        "ranks": p,
        "epochs": settings.epochs,
        "learning_rate": settings.learning_rate,
        "training_samples": total,
        "updates_per_epoch": np.array([updates, other.updates]),
        "start": settings.start,
        "stop": settings.stop,
        "samples": samples,
        "accuracy_percent": 100 * correct / counted,
        "global_loss": weights @ printed["local_loss"],
        "other_global_loss": weights @ run(other, reverse=True)["local_loss"],
        **printed,
        **clocks,
    }


def _wrong_count(rng: np.random.Generator, correct: np.ndarray, samples: int) -> int:
    """Return a number that is too large by a few, and with which the accuracies are no whole counts."""
    for wrong in samples + rng.permutation(np.arange(1, 9)):
        counts = correct / wrong * samples
        if np.abs(counts - np.rint(counts)).max() > 0.05:
            return int(wrong)
    raise AssertionError("each number of samples gives whole counts")  # not with 8 or more samples
