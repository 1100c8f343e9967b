"""Aggregates of the ranks' gradients: their sum, a mean, or a mean that one faulty rank cannot distort.

A sum and a mean are linear: each gradient times a factor, all added up. The ranks can add them while they are
passed on, so every all-reduce algorithm computes them. A median needs all gradients on one rank. The median
and the trimmed mean are Byzantine-robust: a minority of ranks with arbitrary gradients moves them little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

BLOCK = 32_768  # values at a time, so that a block of every row stays in the core's own cache

# By name: the factor of a rank's gradient, from its weight and the number of ranks.
FACTORS: dict[str, Callable[[float, int], float]] = {
    "sum": lambda weight, p: 1.0,
    "mean": lambda weight, p: 1.0 / p,
    "weighted": lambda weight, p: weight,
}


def add_up(rows: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """Leave Σ factor · row in `out`, or in every row of it.

    Shapes: rows (m, n), factors (m,), out (n,) or (k, n), all of one float dtype; `out` may be `rows` itself.
    Each block is one vector-matrix product: BLAS reads the rows once and writes `out` once, while a NumPy sum
    row by row would read and write `out` again for each row.
    """
    for start in range(0, rows.shape[1], BLOCK):
        part = slice(start, start + BLOCK)
        out[..., part] = factors @ rows[:, part]


def median(rows: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Leave the median of the rows, value by value, in `out`: for an even number the mean of the middle two.

    Shapes: rows m × (n,), m ≥ 1, which are overwritten; out (n,). A NaN in a row makes the result NaN.
    """
    middle = (len(rows) - 1) // 2
    _mean_of_sorted(rows, slice(middle, len(rows) - middle), out)


def trimmed_mean(rows: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Leave the mean of the rows without the largest and smallest tenth, value by value, in `out`.

    Drop one row at each end for up to ten rows, two for up to twenty, and so on. For one or two rows none
    would be left, so none is dropped and the result is their mean. Shapes and NaN as for `median`.

    Source: D. Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018.
    """
    drop = min(-(-len(rows) // 10), (len(rows) - 1) // 2)
    _mean_of_sorted(rows, slice(drop, len(rows) - drop), out)


# By name: the aggregates that need all gradients, each as a row.
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
    """Sort each column of the rows in place by odd-even transposition.

    It takes m² / 2 passes over whole rows. Up to a dozen rows it is faster than sorting each column by
    itself: twelve times as fast for four rows.
    """
    for k in range(len(rows)):
        for i in range(k % 2, len(rows) - 1, 2):
            lower = np.minimum(rows[i], rows[i + 1])
            np.maximum(rows[i], rows[i + 1], out=rows[i + 1])
            rows[i][...] = lower
