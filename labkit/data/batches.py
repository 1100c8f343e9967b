"""Minibatches: which part of its shard each rank uses in each step."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def dealt(n: int, batch: int, rank: int, size: int) -> list[slice]:
    """Return, for each step of an epoch, the slice of this rank's shard that is in the step's batch.

    `batch` counts the samples of *all* ranks together: step k works on samples k·batch … (k+1)·batch - 1 of
    the whole set, the last step on what is left, and rank r takes those it was dealt (`strided`): r, r +
    size, …. So the steps, and what is learnt in each, do not depend on the number of ranks. The parts of
    one step differ by at most one sample; with fewer samples than ranks in a step some are empty.

    The same slices serve for `shuffled` shards, where "the whole set" is in the epoch's shuffled order.
    """
    _check(batch)

    def held_before(sample: int) -> int:
        """Return how many of this rank's samples, r, r + size, …, come before `sample`."""
        return max(0, (sample - rank + size - 1) // size)

    return [slice(held_before(start), held_before(min(start + batch, n))) for start in range(0, n, batch)]


def in_order(shard: np.ndarray, n: int, batch: int) -> list[slice]:
    """Return the slices for a shard whose samples stand in ascending order, however many the rank was dealt.

    As `dealt`, for `weighted` shards: step k works on samples k·batch … (k+1)·batch - 1 of the whole set.
    Shapes: shard (n_rank,), indices in 0 … n-1, ascending.
    """
    _check(batch)
    if np.any(np.diff(shard) <= 0):
        raise ValueError(
            "the samples of the shard are not in ascending order: no slice of it is in one batch"
        )
    bounds = np.searchsorted(shard, [*range(0, n, batch), n]).tolist()
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def _check(batch: int) -> None:
    if batch < 1:
        raise ValueError(f"a batch of {batch} samples: expected at least 1")
