"""Figures: each function takes data and returns a matplotlib Figure."""

from labkit.plots.run_timeline import overlap, timeline
from labkit.plots.training import contributions, losses, processes, set_ups, sync_times

__all__ = ["contributions", "losses", "overlap", "processes", "set_ups", "sync_times", "timeline"]
