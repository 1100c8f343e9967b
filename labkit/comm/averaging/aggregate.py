"""What is made of the ranks' gradients: their sum, a mean, or something that no outlying rank can pull along.

Sums and means are linear: each rank's gradient times a factor of its own, all added up. Additions can be made
on the way, by whichever rank a sum comes past, so every way to average has them. A median needs every single
contribution in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

BLOCK = 32_768  # values worked on at a time, so that they stay in the core's own cache

# By name: the factor of a rank, from its share of all samples and the number of ranks.
FACTORS: dict[str, Callable[[float, int], float]] = {
    "sum": lambda weight, p: 1.0,
    "mean": lambda weight, p: 1.0 / p,
    "weighted": lambda weight, p: weight,
}


def add_up(rows: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """Leave Σ factor · row in `out`. Shapes: rows (m, n), factors (m,), out (n,) or (k, n): the same k times.

    All of one float dtype; `out` may be rows itself. One product of a vector and a matrix for each block:
    BLAS reads the rows once, where NumPy's sums would come back to the block for each of them.
    """
    for start in range(0, rows.shape[1], BLOCK):
        part = slice(start, start + BLOCK)
        out[..., part] = factors @ rows[:, part]


def median(rows: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Leave the median of the rows, value by value, in `out`; of an even number the mean of the middle two.

    Shapes: rows m × (n,), m ≥ 1, which are overwritten; out (n,). A NaN in a row is one in the result.
    """
    middle = (len(rows) - 1) // 2
    _mean_of_sorted(rows, slice(middle, len(rows) - middle), out)


def trimmed_mean(rows: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Leave the mean of the rows without the largest and smallest tenth, value by value, in `out`.

    At each end it is one row of up to ten, two of up to twenty, and so on; of one or two rows nothing could
    be left, so none is dropped: it is their mean. Shapes and NaN as for `median`.
    Source: D. Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical CostModel, 2018.
    """
    drop = min(-(-len(rows) // 10), (len(rows) - 1) // 2)
    _mean_of_sorted(rows, slice(drop, len(rows) - drop), out)


# By name: what needs all contributions, each as a row.
ROBUST: dict[str, Callable[[Sequence[np.ndarray], np.ndarray], None]] = {
    "median": median,
    "trimmed-mean": trimmed_mean,
}

AGGREGATES = (*FACTORS, *ROBUST)


def _mean_of_sorted(rows: Sequence[np.ndarray], kept: slice, out: np.ndarray) -> None:
    for start in range(0, out.size, BLOCK):
        block = [row[start : start + BLOCK] for row in rows]
        _sort(block)
        first, *others = block[kept]
        for other in others:
            first += other
        np.divide(first, 1 + len(others), out=out[start : start + BLOCK])


def _sort(rows: Sequence[np.ndarray]) -> None:
    """Sort the rows among each other, value by value, in place: odd-even transposition.

    m² / 2 passes over whole rows; up to a dozen rows that is quicker than a sort of each column, on four
    twelve times.
    """
    for k in range(len(rows)):
        for i in range(k % 2, len(rows) - 1, 2):
            lower = np.minimum(rows[i], rows[i + 1])
            np.maximum(rows[i], rows[i + 1], out=rows[i + 1])
            rows[i][...] = lower
