"""Mini-batches: which slice of its shard each rank uses in each step."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def local_batches(n: int, batch: int, rank: int, size: int) -> list[slice]:
    """Return this rank's local batch for each step of an epoch, as a slice of its shard.

    `batch` is the size of the global batch. Step k uses samples k·batch … (k+1)·batch - 1 of the whole set
    (the last step those that remain), and rank r uses those of them in its `strided` shard: r, r + size, ….
    So the samples of each step do not depend on the number of ranks. Local batches of one step differ by at
    most one sample; if a step has fewer samples than there are ranks, some are empty.

    The same slices work for `shuffled` shards, where "the whole set" means the epoch's shuffled order. Raise
    ValueError if `batch` is below 1.
    """
    _check(batch)

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
    _check(batch)
    if np.any(np.diff(shard) <= 0):
        raise ValueError("expected a shard in ascending order: only then is each local batch a slice of it")
    bounds = np.searchsorted(shard, [*range(0, n, batch), n]).tolist()
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def _check(batch: int) -> None:
    if batch < 1:
        raise ValueError(f"expected a global batch of at least 1 sample, got {batch}")
