"""Checkpoints: a killed run goes on to the weights that it would have had without the break."""

from labkit.train.checkpoints.progress import Progress
from labkit.train.checkpoints.saving import Checkpoints, RunState, Saving, stored_settings

__all__ = ["Checkpoints", "Progress", "RunState", "Saving", "stored_settings"]
