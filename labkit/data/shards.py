"""Shards: which samples each rank holds.

Every scheme gives indices that are disjoint and cover 0 … n-1, without communication: each rank works out its
own. Their numbers differ by at most one between ranks (the first n mod size ranks hold one more), but for
`weighted`, whose purpose is to differ.

`strided`, `shuffled` and `weighted` deal out the samples one after the other, so that a minibatch can be the
next ones of the whole set for any number of ranks (see labkit.data.batches). The others cannot promise that:
which samples meet in a minibatch depends on the number of ranks. With all samples in each step, all agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

Scheme = Callable[[int, int, int], np.ndarray]  # of n, rank, size


def contiguous(n: int, rank: int, size: int) -> np.ndarray:
    """Return the rank-th of `size` runs of neighbouring samples. Result: (n_rank,), int64."""
    _check(n, rank, size)
    each, left = divmod(n, size)
    start = rank * each + min(rank, left)
    return np.arange(start, start + each + (rank < left))


def strided(n: int, rank: int, size: int) -> np.ndarray:
    """Return every size-th sample from `rank` on, as cards are dealt. Result: (n_rank,), int64."""
    _check(n, rank, size)
    return np.arange(rank, n, size)


def shuffled(n: int, rank: int, size: int, seed: int, epoch: int) -> np.ndarray:
    """Return every size-th sample from `rank` on of all samples, shuffled anew in each epoch.

    All ranks draw the same order from the seed and the epoch, so no sample is missed or seen twice, and
    none is added to even out the shards. Result: (n_rank,), int64.
    """
    _check(n, rank, size)
    order = np.random.default_rng([seed, epoch, *b"shuffled shards"]).permutation(n)
    return order[rank::size].copy()  # a view would keep the whole order in memory


def by_label(labels: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return the rank-th run of the samples sorted by label: as skewed as equal shards can be.

    Shapes: labels (n,); result (n_rank,), int64. Samples of one label keep their order.
    """
    return np.argsort(labels, kind="stable")[contiguous(len(labels), rank, size)]


def outlying(targets: np.ndarray, rank: int, size: int, outlier: int) -> np.ndarray:
    """Return shards of which one, the rank `outlier`'s, is unlike the others: report A's case.

    That rank holds the samples with the lowest targets, as many as its equal share; the others are dealt the
    rest. Shapes: targets (n,), labels or values; result (n_rank,), int64, ascending.
    """
    n = len(targets)
    _check(n, rank, size)
    share = len(strided(n, outlier, size))
    order = np.argsort(targets, kind="stable")
    if rank == outlier:
        return np.sort(order[:share])
    rest = np.sort(order[share:])
    others = [each for each in range(size) if each != outlier]
    return rest[others.index(rank) :: len(others)].copy()


def weighted(n: int, rank: int, speeds: Sequence[float]) -> np.ndarray:
    """Return samples dealt in proportion to the ranks' speeds, so that all take about the same time.

    The samples of a rank lie evenly among all, so in any run of neighbours each rank has its proportion, too;
    with equal speeds it is `strided`. `speeds`: one for each rank, above 0, in any unit. Every rank gets at
    least one sample. Result: (n_rank,), int64, ascending.
    """
    size = len(speeds)
    _check(n, rank, size)
    pace = np.asarray(speeds, float)
    if not (np.isfinite(pace).all() and (pace > 0).all()):
        raise ValueError(f"speeds {list(speeds)}: expected one above 0 for each rank")
    pace = np.maximum(pace / pace.max(), 1e-12)
    counts = _apportion(n, pace)
    # Each rank works at its pace; the next sample goes to whoever is done first, on a tie to the lower rank.
    due = np.concatenate(
        [(np.arange(count) + 0.5) / speed for count, speed in zip(counts, pace, strict=True)]
    )
    owners = np.repeat(np.arange(size), counts)
    return np.flatnonzero(owners[np.argsort(due, kind="stable")] == rank)


def _apportion(n: int, weights: np.ndarray) -> np.ndarray:
    """Return n ≥ p as p whole numbers, at least 1 each, in proportion to the weights but for rounding.

    Shapes: weights (p,), above 0; result (p,), int64. By largest remainder (Hamilton's method).
    """
    exact = n * weights / weights.sum()
    counts = exact.astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: n - counts.sum()]] += 1
    for none in np.flatnonzero(counts == 0):
        counts[none] += 1
        counts[counts.argmax()] -= 1
    return counts


# What `labkit train --shard` knows.
SCHEMES = ("contiguous", "strided", "shuffled", "by-label", "outlying", "weighted")


def scheme(
    name: str,
    *,
    targets: np.ndarray | None = None,
    seed: int = 0,
    epoch: int = 1,
    speeds: Sequence[float] = (),
) -> Scheme:
    """Return the scheme of that name as a function of n, rank and size.

    Some need more: "by-label" and "outlying" the targets of all samples, (n,) or (n, outputs), "shuffled" the
    seed and the epoch, "weighted" the speeds. With "outlying" the rank in the middle, size // 2, is the
    outlier, as in report A.
    """
    if name not in SCHEMES:
        raise ValueError(f"no sharding scheme {name!r}: there are {', '.join(SCHEMES)}")
    if name in ("by-label", "outlying"):
        if targets is None:
            raise ValueError(f"the scheme {name!r} needs the targets of all samples")
        return partial(_by_target, name, targets)
    if name == "weighted":
        return partial(_by_speed, speeds)
    schemes: dict[str, Scheme] = {
        "contiguous": contiguous,
        "strided": strided,
        "shuffled": partial(shuffled, seed=seed, epoch=epoch),
    }
    return schemes[name]


def _by_target(name: str, targets: np.ndarray, n: int, rank: int, size: int) -> np.ndarray:
    if len(targets) != n:
        raise ValueError(f"{len(targets)} targets for {n} samples")
    targets = targets.reshape(n, -1)[:, 0]  # of several values the first
    return by_label(targets, rank, size) if name == "by-label" else outlying(targets, rank, size, size // 2)


def _by_speed(speeds: Sequence[float], n: int, rank: int, size: int) -> np.ndarray:
    if len(speeds) != size:
        raise ValueError(f"{len(speeds)} speeds for {size} ranks")
    return weighted(n, rank, speeds)


def _check(n: int, rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size} ranks: expected 0 … {size - 1}")
    if n < size:
        raise ValueError(
            f"{n} samples for {size} ranks: every rank needs at least one; start at most {n} ranks"
        )
