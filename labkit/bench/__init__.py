"""Measuring: rows of ratios, ours against another way to do the same, taken in one run."""

from labkit.bench.rows import Row, interleaved, rows_of, table

__all__ = ["Row", "interleaved", "rows_of", "table"]
