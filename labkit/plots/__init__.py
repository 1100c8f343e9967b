"""Figures: each function takes data and returns a Matplotlib Figure."""

from labkit.plots.timeline import timeline
from labkit.plots.training import contributions, losses, sync_times

__all__ = ["contributions", "losses", "sync_times", "timeline"]
