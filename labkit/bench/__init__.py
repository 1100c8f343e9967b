"""Benchmarks: rows of ratios, the lab against other ways to do the same, measured in one run."""

from labkit.bench.rows import Row, interleaved, rows_of, table

__all__ = ["Row", "interleaved", "rows_of", "table"]
