"""Shards: which samples each rank has, and its local batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

Scheme = Callable[[int, int, int], np.ndarray]  # takes n, rank and size


def contiguous(n: int, rank: int, size: int) -> np.ndarray:
    """Return the rank-th of `size` contiguous blocks of samples. Result: (n_rank,), int64."""
    _check(n, rank, size)
    count, left = divmod(n, size)
    start = rank * count + min(rank, left)
    return np.arange(start, start + count + (rank < left))


def strided(n: int, rank: int, size: int) -> np.ndarray:
    """Return every size-th sample, starting at `rank`. Result: (n_rank,), int64."""
    _check(n, rank, size)
    return np.arange(rank, n, size)


def shuffled(n: int, rank: int, size: int, seed: int, epoch: int, *, pad: bool = False) -> np.ndarray:
    """Return every size-th sample, starting at `rank`, of a new random order in each epoch.

    All ranks draw the same order from seed and epoch, so every sample is used exactly once. With `pad`, the
    first of the order are repeated until all shards are equal, as PyTorch's DistributedSampler does it.
    Result: (n_rank,), int64.
    """
    _check(n, rank, size)
    order = np.random.default_rng([seed, epoch, *b"shuffled shards"]).permutation(n)
    if pad:
        order = np.resize(order, -(-n // size) * size)
    return order[rank::size].copy()  # a view would keep the whole order in memory


def by_label(labels: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return the rank-th contiguous block of the samples sorted by label: non-i.i.d. shards, label skew.

    Shapes: labels (n,); result (n_rank,), int64. Samples with the same label keep their order.
    """
    return np.argsort(labels, kind="stable")[contiguous(len(labels), rank, size)]


def outlying(targets: np.ndarray, rank: int, size: int, outlier: int) -> np.ndarray:
    """Return shards of which one, that of rank `outlier`, differs from the others, as in report A.

    Rank `outlier` holds the samples with the lowest targets; the other ranks hold strided shards of the rest.
    All are equal in size to within one. Shapes: targets (n,), labels or values; result (n_rank,), int64,
    ascending.
    """
    n = len(targets)
    _check(n, rank, size)
    count = len(strided(n, outlier, size))
    order = np.argsort(targets, kind="stable")
    if rank == outlier:
        return np.sort(order[:count])
    rest = np.sort(order[count:])
    others = [other for other in range(size) if other != outlier]
    return rest[others.index(rank) :: len(others)].copy()


def weighted(n: int, rank: int, speeds: Sequence[float]) -> np.ndarray:
    """Return shards in proportion to the ranks' speeds, so that all ranks take about the same time.

    The samples of a rank are spread evenly, so each rank has its proportion of every mini-batch, too. Equal
    speeds give `strided` shards. `speeds` has one value above 0 per rank, in any unit. Every rank gets at
    least one sample. Result: (n_rank,), int64, ascending.
    """
    size = len(speeds)
    _check(n, rank, size)
    pace = np.asarray(speeds, float)
    if not (np.isfinite(pace).all() and (pace > 0).all()):
        raise ValueError(f"expected a speed above 0 for each rank, got {list(speeds)}")
    pace = np.maximum(pace / pace.max(), 1e-12)
    counts = _apportion(n, pace)
    # The next sample goes to the rank that is done first, or to the lower rank if there is a tie.
    due = np.concatenate(
        [(np.arange(count) + 0.5) / speed for count, speed in zip(counts, pace, strict=True)]
    )
    owners = np.repeat(np.arange(size), counts)
    return np.flatnonzero(owners[np.argsort(due, kind="stable")] == rank)


def _apportion(n: int, weights: np.ndarray) -> np.ndarray:
    """Divide n ≥ p into p integers ≥ 1, in proportion to the weights except for rounding.

    Shapes: weights (p,), above 0; result (p,), int64. Use the largest-remainder method (Hamilton).
    """
    exact = n * weights / weights.sum()
    counts = exact.astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: n - counts.sum()]] += 1
    for empty in np.flatnonzero(counts == 0):
        counts[empty] += 1
        counts[counts.argmax()] -= 1
    return counts


# The choices of `labkit train --shard`.
SCHEMES = ("contiguous", "strided", "shuffled", "distributed-sampler", "by-label", "outlying", "weighted")


def scheme(
    name: str,
    *,
    targets: np.ndarray | None = None,
    seed: int = 0,
    epoch: int = 1,
    speeds: Sequence[float] = (),
) -> Scheme:
    """Return the scheme of that name as a function of n, rank and size.

    "by-label" and "outlying" need the targets of all samples, (n,) or (n, outputs); "shuffled" and
    "distributed-sampler", which pads, use the seed and the epoch; "weighted" needs the speeds. For
    "outlying", rank size // 2 is the outlier, as in report A. Raise ValueError for an unknown name or
    missing targets.
    """
    if name not in SCHEMES:
        raise ValueError(f"no sharding scheme {name!r}; available: {', '.join(SCHEMES)}")
    if name in ("by-label", "outlying"):
        if targets is None:
            raise ValueError(f"sharding scheme {name!r} needs the targets of all samples")
        return partial(_by_target, name, targets)
    if name == "weighted":
        return partial(_by_speed, speeds)
    schemes: dict[str, Scheme] = {
        "contiguous": contiguous,
        "strided": strided,
        "shuffled": partial(shuffled, seed=seed, epoch=epoch),
        "distributed-sampler": partial(shuffled, seed=seed, epoch=epoch, pad=True),
    }
    return schemes[name]


def _by_target(name: str, targets: np.ndarray, n: int, rank: int, size: int) -> np.ndarray:
    if len(targets) != n:
        raise ValueError(f"expected {n} targets, one for each sample, got {len(targets)}")
    targets = targets.reshape(n, -1)[:, 0]  # sort by the first of several outputs
    return by_label(targets, rank, size) if name == "by-label" else outlying(targets, rank, size, size // 2)


def _by_speed(speeds: Sequence[float], n: int, rank: int, size: int) -> np.ndarray:
    if len(speeds) != size:
        raise ValueError(f"expected {size} speeds, one for each rank, got {len(speeds)}")
    return weighted(n, rank, speeds)


def _check(n: int, rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"expected a rank in 0 … {size - 1}, got {rank}")
    if n < size:
        raise ValueError(
            f"{n} samples for {size} ranks are too few: each needs at least one; start at most {n} ranks"
        )


def local_batches(n: int, batch: int, rank: int, size: int) -> list[slice]:
    """Return this rank's local batch for each step of an epoch, as a slice of its shard.

    `batch` is the size of the global batch. Step k uses samples k·batch … (k+1)·batch - 1 of the whole set
    (the last step those that remain), and rank r uses those of them in its `strided` shard: r, r + size, ….
    So the samples of each step do not depend on the number of ranks. Local batches of one step differ by at
    most one sample; if a step has fewer samples than there are ranks, some are empty.

    The same slices work for `shuffled` shards, where "the whole set" means the epoch's shuffled order. Raise
    ValueError if `batch` is below 1.
    """
    _check_batch(batch)

    def in_shard_before(sample: int) -> int:
        """Return how many of this rank's samples, r, r + size, …, come before `sample`."""
        return max(0, (sample - rank + size - 1) // size)

    return [
        slice(in_shard_before(start), in_shard_before(min(start + batch, n))) for start in range(0, n, batch)
    ]


def batches_by_index(shard: np.ndarray, n: int, batch: int) -> list[slice]:
    """Return this rank's local batch for each step, for any shard in ascending order, such as `weighted`.

    As in `local_batches`, step k uses samples k·batch … (k+1)·batch - 1 of the whole set; find those that
    the shard holds. Shape: shard (n_rank,), ascending indices in 0 … n-1. Raise ValueError if it is not
    ascending or `batch` is below 1.
    """
    _check_batch(batch)
    if np.any(np.diff(shard) <= 0):
        raise ValueError("expected a shard in ascending order: only then is each local batch a slice of it")
    bounds = np.searchsorted(shard, [*range(0, n, batch), n]).tolist()
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def _check_batch(batch: int) -> None:
    if batch < 1:
        raise ValueError(f"expected a global batch of at least 1 sample, got {batch}")
