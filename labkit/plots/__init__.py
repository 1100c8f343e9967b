"""Figures: each function takes data and returns a matplotlib Figure."""

from labkit.plots.training import comparison, losses, timeline
