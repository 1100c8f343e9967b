"""Shards: which samples each rank holds.

Every scheme gives indices that are disjoint, cover 0 … n-1, and whose numbers differ by at most one between
ranks (the first n mod size ranks hold one more). They need no communication: each rank works out its own.
"""

from __future__ import annotations

import numpy as np


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


def by_label(labels: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return the rank-th run of the samples sorted by label: as skewed as equal shards can be.

    Shapes: labels (n,); result (n_rank,), int64. Samples of one label keep their order.
    """
    return np.argsort(labels, kind="stable")[contiguous(len(labels), rank, size)]


def _check(n: int, rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size} ranks: expected 0 … {size - 1}")
    if n < size:
        raise ValueError(
            f"{n} samples for {size} ranks: every rank needs at least one; start at most {n} ranks"
        )
