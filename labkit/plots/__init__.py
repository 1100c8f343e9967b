"""Figures: each function takes data and returns a matplotlib Figure."""

from labkit.plots.run_timeline import timeline
from labkit.plots.training import contributions, losses, sync_times

__all__ = ["contributions", "losses", "sync_times", "timeline"]
