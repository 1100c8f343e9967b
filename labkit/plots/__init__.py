"""Figures: each function takes data and returns a matplotlib Figure."""

from labkit.plots.run_timeline import timeline
from labkit.plots.training import losses, processes, set_ups

__all__ = ["losses", "processes", "set_ups", "timeline"]
